// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/parser.h>

#include <string_view>

#include "targets.h"

namespace meshfuse::fuzz {

void parseIrText(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::unique_ptr<Fusion> fusion;
  try {
    fusion = parseIr(text);
  } catch (const Error&) {
    return;
  } catch (const UnsupportedError&) {
    return;
  }
  const auto again = parseIr(irText(*fusion));
  MESHFUSE_ASSERT(again->sameAs(*fusion), "the printed text is another program: ", irText(*fusion));
}

}  // namespace meshfuse::fuzz
