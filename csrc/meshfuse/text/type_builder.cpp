// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/ir/printer.h>
#include <meshfuse/text/type_builder.h>

#include <algorithm>

namespace meshfuse {
namespace {

IterType iterType(char letter) {
  switch (letter) {
    case 'r':
      return IterType::Reduction;
    case 'b':
      return IterType::Broadcast;
    case 's':
      return IterType::Symbolic;
    default:
      return IterType::Iteration;
  }
}

bool isTransform(const ItemText& item) { return item.kind <= ItemText::Merge; }

/// Data type and axes without numbers, for comparison and messages.
std::string rootOf(const Fusion& fusion, const TypeText& text) {
  std::string out = std::string(textName(text.dtype)) + "[";
  for (const AxisText& axis : text.root) {
    if (out.back() != '[') out += ", ";
    out += axis.ref.letter + ("{" + toString(fusion, axis.extent));
    if (axis.expanded) out += " exp " + toString(fusion, axis.expanded);
    out += '}';
  }
  return out + "]";
}

TypeText inferredText(const TensorView* tv) {
  TypeText text;
  text.dtype = tv->dtype();
  for (const IterDomain* id : tv->getMaybeRootDomain()) {
    AxisText axis;
    constexpr std::string_view kLetters = "irbs";
    axis.ref.letter = kLetters[static_cast<size_t>(id->iterType())];
    axis.extent = id->extent();
    axis.expanded = id->expandedExtent();
    text.root.push_back(axis);
  }
  return text;
}

/// An rfactor may have made a reduction of the op an iteration.
bool sameRoot(const TypeText& inferred, const TypeText& written) {
  return inferred.dtype == written.dtype &&
         std::ranges::equal(inferred.root, written.root, [](const AxisText& x, const AxisText& y) {
           const bool freed = y.rfactor && x.ref.letter == 'r' && y.ref.letter == 'i';
           return (x.ref.letter == y.ref.letter || freed) && x.extent == y.extent &&
                  x.expanded == y.expanded;
         });
}

}  // namespace

void checkResultType(const TensorView* tv, const TypeText& text, const std::string& op) {
  const TypeText inferred = inferredText(tv);
  if (sameRoot(inferred, text)) return;
  const Fusion& fusion = *tv->fusion();
  TokenReader::fault(text.at, "the text says " + rootOf(fusion, text) + ", but " + op + " gives " +
                                  rootOf(fusion, inferred) + ". Correct the type");
}

void TypeBuilder::define() {
  makeRoot();
  const auto logical = std::ranges::find(text_.items, ItemText::Logical, &ItemText::kind);
  if (logical != text_.items.end()) makeLogical();
  if (text_.cpu && !text_.root.empty()) {
    TokenReader::fault(text_.at, "only a tensor without axes can be 'cpu'. Remove the word");
  }
  tv_->setCpuScalar(text_.cpu);
}

void TypeBuilder::schedule() {
  for (; next_item_ < text_.items.size(); ++next_item_) scheduleItem(text_.items[next_item_]);
  finishLoop();
  finishAllocation();
  renumber();
  if (text_.mesh) setMesh();
}

void TypeBuilder::setMesh() {
  try {
    tv_->setDeviceMesh(*text_.mesh);
  } catch (const Error& error) {
    throw Error(
        concat("parseIr: line ", text_.at.line, ", column ", text_.at.column, ": ", error.what()),
        error.where());
  }
}

void TypeBuilder::introduce(const AxisText& axis, int32_t index) {
  if (!index_.emplace(axis.ref.number, index).second) {
    TokenReader::fault(axis.ref.at, "the number of " + axis.ref.at.text +
                                        " is taken by another axis. Use each number once");
  }
  domain_.parallelize(index, axis.parallel);
  domain_.setSwizzle(index, axis.swizzle);
  if (axis.rfactor) domain_.setRFactor(index, iterType(axis.ref.letter), true);
}

int32_t TypeBuilder::find(const AxisRef& ref) const {
  const auto it = index_.find(ref.number);
  if (it == index_.end()) {
    TokenReader::fault(ref.at, "axis " + ref.at.text + " is not defined before. Define it first");
  }
  if (domain_.id(it->second)->iterType() != iterType(ref.letter)) {
    TokenReader::fault(
        ref.at, "axis " + ref.at.text + " is of another kind where it is defined. Use that letter");
  }
  return it->second;
}

AxisList TypeBuilder::findAll(const ItemText& item) const {
  AxisList list;
  for (const AxisRef& ref : item.axes) {
    list.push_back(find(ref));
    if (std::ranges::count(list, list.back()) > 1) {
      TokenReader::fault(ref.at, "axis " + ref.at.text + " is listed twice. List each axis once");
    }
  }
  return list;
}

/// Keeps the axes that an op made when the text numbers them alike, so that numbers of axes count
/// them once; else makes new ones, in order of their numbers.
void TypeBuilder::makeRoot() {
  const auto same_number = [](int32_t i, const AxisText& a) { return i == a.ref.number; };
  const bool keep = !domain_.hasRoot() && domain_.transforms().empty() &&
                    domain_.ids().size() == text_.root.size() &&
                    std::ranges::equal(domain_.logical(), text_.root, same_number);
  std::vector<const AxisText*> order;
  order.reserve(text_.root.size());
  for (const AxisText& axis : text_.root) order.push_back(&axis);
  std::ranges::sort(order, {}, [](const AxisText* a) { return a->ref.number; });
  if (!keep) domain_ = TensorDomain();
  for (const AxisText* a : order) {
    introduce(*a,
              keep ? a->ref.number
                   : domain_.newId(fusion_, tv_, a->extent, iterType(a->ref.letter), a->expanded));
  }
  for (const AxisText& axis : text_.root) root_.push_back(index_.at(axis.ref.number));
  domain_.setLogical(root_);
  domain_.clearAllocation();
}

void TypeBuilder::makeLogical() {
  AxisList present = root_;
  size_t& i = next_item_;
  for (; text_.items[i].kind != ItemText::Logical; ++i) {
    const ItemText& item = text_.items[i];
    if (!isTransform(item)) {
      TokenReader::fault(item.at, "'" + item.at.text + "' stands before 'logical'. Put it behind");
    }
    for (const int32_t in : findAll(item)) {
      const auto place = std::ranges::find(present, in);
      if (place == present.end()) {
        TokenReader::fault(item.at,
                           "an axis is split or merged twice before 'logical'. "
                           "Transform each axis once");
      }
      present.erase(place);
    }
    transform(item, true);
    for (const AxisText& out : item.out) present.push_back(index_.at(out.ref.number));
  }
  const ItemText& item = text_.items[i];
  AxisList logical = findAll(item);
  AxisList sorted = logical;
  std::ranges::sort(sorted);
  std::ranges::sort(present);
  if (sorted != present) {
    TokenReader::fault(item.at,
                       "the logical axes do not stand for all root axes. List what the "
                       "transforms before leave of them");
  }
  for (const int32_t l : logical) {
    if (domain_.definition(l) != nullptr) {
      domain_.setRFactor(l, domain_.id(l)->iterType(), true);
    }
  }
  domain_.setLogical(std::move(logical));
  domain_.setRoot(root_);
  domain_.clearAllocation();
  ++i;
}

void TypeBuilder::transform(const ItemText& item, bool definition) {
  const AxisList in = findAll(item);
  if (item.kind == ItemText::Split) {
    const auto [outer, inner] = domain_.split(fusion_, in[0], item.factor, item.inner);
    result(item.out[0], outer, definition);
    result(item.out[1], inner, definition);
    return;
  }
  if (domain_.id(in[0])->isReduction() != domain_.id(in[1])->isReduction()) {
    TokenReader::fault(item.at,
                       "a reduction is merged with an axis that is none. Merge axes of "
                       "one kind");
  }
  result(item.out[0], domain_.merge(fusion_, in[0], in[1]), definition);
}

/// Checks a written result of a transform against what it is.
void TypeBuilder::result(const AxisText& written, int32_t index, bool definition) {
  const IterDomain* id = domain_.id(index);
  const IterType type = iterType(written.ref.letter);
  if (written.extent != id->extent() || written.expanded != id->expandedExtent()) {
    const auto show = [&](Scalar extent, Scalar expanded) {
      return toString(fusion_, extent) + (expanded ? " exp " + toString(fusion_, expanded) : "");
    };
    TokenReader::fault(written.ref.at,
                       written.ref.at.text + " is written with the size " +
                           show(written.extent, written.expanded) + ", but the transform gives " +
                           show(id->extent(), id->expandedExtent()) + ". Correct one of them");
  }
  const bool freed = definition && id->isReduction() && type == IterType::Iteration;
  if (type != id->iterType() && !freed) {
    TokenReader::fault(written.ref.at, written.ref.at.text +
                                           " is not of the kind that the transform gives. Use "
                                           "the letter of the axis that is transformed");
  }
  if (written.rfactor) {
    TokenReader::fault(written.ref.at, "'rf' stands behind " + written.ref.at.text +
                                           ", which a split or merge makes. Leave it out: it "
                                           "follows from 'logical'");
  }
  if (freed) domain_.setRFactor(index, type, false);
  introduce(written, index);
}

void TypeBuilder::scheduleItem(const ItemText& item) {
  if (isTransform(item)) return transform(item, false);
  const bool repeated = item.kind == ItemText::Logical || (item.kind == ItemText::Loop && loop_) ||
                        (item.kind == ItemText::Alloc && allocation_);
  if (repeated) {
    TokenReader::fault(item.at, "'" + item.at.text + "' stands twice. Write it once");
  }
  (item.kind == ItemText::Loop ? loop_ : allocation_) = &item;
}

void TypeBuilder::finishLoop() {
  if (loop_ == nullptr) {
    domain_.setLoop(defaultLoop(domain_));
    return;
  }
  AxisList list = findAll(*loop_);
  checkCover(*loop_, list);
  domain_.setLoop(std::move(list));
}

void TypeBuilder::finishAllocation() {
  if (allocation_ == nullptr) return;
  const bool listed = allocation_->as_loop || !allocation_->axes.empty();
  AxisList list = !listed                ? domain_.logical()
                  : allocation_->as_loop ? domain_.loop()
                                         : findAll(*allocation_);
  checkCover(*allocation_, list);
  Contiguity flags = domain_.uniformContiguity(list, true);
  if (allocation_->has_flags) readFlags(flags);
  if (listed) {
    domain_.setAllocation(std::move(list), std::move(flags));
  } else {
    domain_.setContiguity(std::move(flags));
  }
}

/// Turns the default flags into the written ones.
void TypeBuilder::readFlags(Contiguity& flags) const {
  const std::vector<Token>& written = allocation_->flags;
  if (written.size() != flags.size()) {
    TokenReader::fault(allocation_->at,
                       std::to_string(written.size()) + " flags after 'contig' for " +
                           std::to_string(flags.size()) + " axes. Write one of t, f, n per axis");
  }
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i].has_value() == (written[i].text == "n")) {
      TokenReader::fault(written[i], "flag " + std::to_string(i) + " is '" + written[i].text +
                                         "'. Write n for a broadcast or a reduction, and t or f "
                                         "for other axes");
    }
    if (flags[i]) flags[i] = written[i].text == "t";
  }
}

void TypeBuilder::checkCover(const ItemText& item, const AxisList& list) const {
  if (domain_.coversLogical(list)) return;
  TokenReader::fault(item.at, "the axes of '" + item.at.text +
                                  "' do not stand for the same elements as the logical axes. "
                                  "Reach every logical axis once through splits and merges");
}

/// Puts the axes in order of their written numbers: an rfactor moves transforms to the front that
/// were made late.
void TypeBuilder::renumber() {
  std::vector<std::pair<int32_t, int32_t>> order(index_.begin(), index_.end());
  std::ranges::sort(order);
  AxisList to(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    to[static_cast<size_t>(order[i].second)] = static_cast<int32_t>(i);
  }
  domain_.renumber(to);
}

}  // namespace meshfuse
