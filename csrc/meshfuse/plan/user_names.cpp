// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ops/op_def.h>
#include <meshfuse/plan/user_names.h>

#include <cctype>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace meshfuse {
namespace {

using Names = std::unordered_map<std::string, std::string>;

std::string replaced(const std::string& line, const Names& names) {
  std::string out;
  const auto isWord = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t begin = 0; begin < line.size();) {
    size_t end = begin + 1;
    if (isWord(line[begin]))
      while (end < line.size() && isWord(line[end])) ++end;
    const std::string word = line.substr(begin, end - begin);
    const auto it = names.find(word);
    out += it == names.end() ? word : it->second;
    begin = end;
  }
  return out;
}

}  // namespace

const TensorView* userTensor(const TensorView* tv, size_t user_tensors) {
  const auto isUsers = [&](const TensorView* t) { return std::cmp_less(t->id(), user_tensors); };
  const TensorView* t = tv;
  while (!isUsers(t) && t->definition() != nullptr && t->definition()->cause() &&
         t->definition()->op().isIdentity()) {
    t = t->definition()->input(0);
  }
  if (isUsers(t)) return t;
  t = tv;
  while (!isUsers(t) && !t->uses().empty()) t = t->uses()[0]->output(0);
  return isUsers(t) ? t : nullptr;
}

Error withUserNames(const Error& error, const Fusion& compiled, size_t user_tensors) {
  Names names;
  for (const TensorView& tv : compiled.tensors()) {
    if (std::cmp_less(tv.id(), user_tensors)) continue;
    const TensorView* user = userTensor(&tv, user_tensors);
    if (user != nullptr) names.emplace(tv.name(), user->name());
  }
  std::string text;
  std::istringstream lines(error.what());
  for (std::string line; std::getline(lines, line);) {
    if (!text.empty()) text += '\n';
    text += line.starts_with("  while compiling ") ? line : replaced(line, names);
  }
  ErrorWhere where = error.where();
  if (const auto it = names.find(where.tensor); it != names.end()) where.tensor = it->second;
  return Error(text, where);
}

}  // namespace meshfuse
