// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/ops/compose.h>
#include <meshfuse/ops/creation.h>

namespace meshfuse {

struct DropoutOp final : ComposedOp {
  OpInfo info() const override {
    return {.name = "dropout",
            .params = {tensor("x"), attr("p", ParamKind::Number, 0.5),
                       attr("rng_seed", ParamKind::Number, Arg{}),
                       attr("rng_offset", ParamKind::Number, Arg{})},
            .doc =
                "Sets elements to zero with probability p, and divides the others by 1 - p. Which "
                "ones depends on rng_seed, rng_offset and the place in the global tensor, as in "
                "rand_like."};
  }
  std::vector<Val> compose(const OpCall& call) const override {
    const Composer ops(call);
    ScalarPool& pool = ops.scalars();
    TensorView* x = ops.operand(0);
    checkSeed(call, 2);
    const Scalar p = pool.cast(call.scalar(1), DataType::Double);
    const ScalarNode& node = pool.node(p);
    const double known = node.op == ScalarOp::Const ? toDouble(node.value) : 0;
    MESHFUSE_CHECK(known >= 0 && known <= 1, "dropout: p is ", known, " for ", at(call.tensor(0)),
                   ". Give a probability between 0 and 1.");
    TensorView* kept = ops("ge", {ops("rand_like", {x, call.args()[2], call.args()[3]}), p});
    // With p = 1 nothing is kept, and what is divided by 0 does not matter.
    const Scalar rest = known == 1 ? ops.number(1) : pool.sub(ops.number(1), p);
    return {ops.as(call.tensor(0)->dtype(), ops("div", {ops("mul", {x, kept}), rest}))};
  }
};
MESHFUSE_REGISTER_OP(DropoutOp);

}  // namespace meshfuse
