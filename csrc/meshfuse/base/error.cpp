// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>

#include <string_view>

namespace meshfuse::detail {

void throwError(const MessageBuilder& message) { throw Error(message.text(), message.where()); }

void throwInternal(const char* file, int line, const char* condition,
                   const MessageBuilder& message) {
  std::string_view path(file);
  if (const auto at = path.rfind("meshfuse/"); at != std::string_view::npos) path.remove_prefix(at);
  std::ostringstream out;
  out << "Internal error at " << path << ":" << line << " (" << condition
      << " does not hold): " << message.text()
      << ". This is a fault of meshfuse; please report it with the program that shows it.";
  throw InternalError(out.str());
}

}  // namespace meshfuse::detail
