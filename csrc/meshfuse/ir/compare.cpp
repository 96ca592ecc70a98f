// SPDX-License-Identifier: BSD-3-Clause
// Structural equality of two Fusions.
#include <meshfuse/ir/fusion.h>

#include <algorithm>
#include <unordered_map>

namespace meshfuse {
namespace {

/// Walks two programs side by side and pairs their tensors and scalar symbols.
class Comparison {
 public:
  Comparison(const Fusion& a, const Fusion& b) : a_(a), b_(b) {}

  bool run() {
    if (a_.inputs().size() != b_.inputs().size()) return false;
    if (a_.outputs().size() != b_.outputs().size()) return false;
    for (size_t i = 0; i < a_.inputs().size(); ++i) {
      if (!declare(a_.inputs()[i], b_.inputs()[i])) return false;
    }
    const std::vector<Expr*> ea = a_.exprs(), eb = b_.exprs();
    if (ea.size() != eb.size()) return false;
    for (size_t i = 0; i < ea.size(); ++i) {
      if (!same(*ea[i], *eb[i])) return false;
    }
    for (size_t i = 0; i < a_.outputs().size(); ++i) {
      const FusionOutput &x = a_.outputs()[i], &y = b_.outputs()[i];
      if (!same(x.value, y.value) || (x.alias == nullptr) != (y.alias == nullptr)) return false;
      if (x.alias != nullptr && !same(x.alias, y.alias)) return false;
    }
    return true;
  }

 private:
  bool declare(const Val& x, const Val& y) {
    if (x.index() != y.index()) return false;
    if (const auto* tv = std::get_if<TensorView*>(&x))
      return declare(*tv, std::get<TensorView*>(y));
    const Scalar sx = std::get<Scalar>(x), sy = std::get<Scalar>(y);
    if (a_.scalars().dtype(sx) != b_.scalars().dtype(sy)) return false;
    numbers_[a_.scalars().node(sx).number] = b_.scalars().node(sy).number;
    return true;
  }

  bool declare(const TensorView* x, const TensorView* y) {
    if (x->dtype() != y->dtype() || x->isCpuScalar() != y->isCpuScalar()) return false;
    tensors_[x->id()] = y->id();
    if (!(x->getDeviceMesh() == y->getDeviceMesh())) return false;
    return same(x->domain(), y->domain());
  }

  bool same(const TensorView* x, const TensorView* y) const {
    const auto it = tensors_.find(x->id());
    return it != tensors_.end() && it->second == y->id();
  }

  bool same(const Val& x, const Val& y) const {
    if (x.index() != y.index()) return false;
    if (const auto* tv = std::get_if<TensorView*>(&x)) return same(*tv, std::get<TensorView*>(y));
    return same(std::get<Scalar>(x), std::get<Scalar>(y));
  }

  bool same(Scalar x, Scalar y) const {
    if (!x || !y) return !x && !y;
    const ScalarNode &p = a_.scalars().node(x), &q = b_.scalars().node(y);
    if (p.op != q.op || p.dtype != q.dtype) return false;
    if (p.op == ScalarOp::Const)
      return p.value == q.value || (p.value != p.value && q.value != q.value);
    if (p.op != ScalarOp::Symbol) {
      if (same(p.a, q.a) && same(p.b, q.b)) return true;
      const bool commutes = p.op == ScalarOp::Add || p.op == ScalarOp::Mul ||
                            p.op == ScalarOp::Min || p.op == ScalarOp::Max;
      return commutes && same(p.a, q.b) && same(p.b, q.a);
    }
    if (p.tensor < 0 || q.tensor < 0) {
      const auto it = numbers_.find(p.number);
      return p.tensor == q.tensor && it != numbers_.end() && it->second == q.number;
    }
    const auto it = tensors_.find(p.tensor);
    return it != tensors_.end() && it->second == q.tensor && p.axis == q.axis;
  }

  bool same(const TensorDomain& x, const TensorDomain& y) const {
    if (x.ids().size() != y.ids().size() || x.transforms().size() != y.transforms().size())
      return false;
    if (x.root() != y.root() || x.logical() != y.logical() || x.loop() != y.loop()) return false;
    if (x.allocation() != y.allocation() || x.hasAllocation() != y.hasAllocation()) return false;
    if (x.contiguity() != y.contiguity()) return false;
    for (size_t i = 0; i < x.ids().size(); ++i) {
      const IterDomain *p = x.ids()[i], *q = y.ids()[i];
      if (p->iterType() != q->iterType() || p->getParallelType() != q->getParallelType())
        return false;
      if (p->isRFactorProduct() != q->isRFactorProduct()) return false;
      if (p->swizzle() != q->swizzle()) return false;
      if (!same(p->extent(), q->extent()) || !same(p->expandedExtent(), q->expandedExtent()))
        return false;
    }
    for (size_t i = 0; i < x.transforms().size(); ++i) {
      Transform p = x.transforms()[i], q = y.transforms()[i];
      if (!same(p.factor, q.factor)) return false;
      p.factor = q.factor = Scalar{};
      if (!(p == q)) return false;
    }
    return true;
  }

  bool same(const Arg& x, const Arg& y) const {
    if (x.index() != y.index()) return false;
    if (const auto* tv = std::get_if<TensorView*>(&x)) return same(*tv, std::get<TensorView*>(y));
    if (const auto* s = std::get_if<Scalar>(&x)) return same(*s, std::get<Scalar>(y));
    const auto each = [&](const auto& p, const auto& q) {
      return std::ranges::equal(p, q, [&](auto u, auto v) { return same(u, v); });
    };
    if (const auto* l = std::get_if<std::vector<Scalar>>(&x)) {
      return each(*l, std::get<std::vector<Scalar>>(y));
    }
    if (const auto* l = std::get_if<std::vector<TensorView*>>(&x)) {
      return each(*l, std::get<std::vector<TensorView*>>(y));
    }
    return x == y;
  }

  bool same(const Expr& x, const Expr& y) {
    if (&x.op() != &y.op() || x.args().size() != y.args().size()) return false;
    for (size_t i = 0; i < x.args().size(); ++i) {
      if (!same(x.args()[i], y.args()[i])) return false;
    }
    if (x.outputs().size() != y.outputs().size()) return false;
    for (size_t i = 0; i < x.outputs().size(); ++i) {
      if (!declare(x.outputs()[i], y.outputs()[i])) return false;
    }
    return true;
  }

  const Fusion &a_, &b_;
  std::unordered_map<int32_t, int32_t> tensors_, numbers_;
};

}  // namespace

bool Fusion::sameAs(const Fusion& other) const { return Comparison(*this, other).run(); }

}  // namespace meshfuse
