#include "startrail/plan/problem.h"

#include "startrail/base/error.h"
#include "startrail/layout/tile.h"

namespace startrail {
namespace {

int64_t heads_of(Data data, int slice, const PlanHead& head, const Problem& problem) {
  if (is_key_side(data))
    return slice == kAllHeads ? problem.key_heads : key_heads_of_slice(problem.key_heads, head.slices);
  return slice == kAllHeads ? problem.heads : problem.heads / head.slices;
}

// With values of type element; partial results and finished ones have others.
Form plain_form(const Block& block, const PlanHead& head, const Problem& problem) {
  Form form{problem.side(block.data).tokens(block.chunks), heads_of(block.data, block.slice, head, problem)};
  const bool backward = head.pass != Pass::forward;
  switch (block.data) {
    case Data::query:
      form.planes = backward ? 2 : 1;
      form.stats = backward ? 2 : 0;
      return form;
    case Data::saved:
      form.planes = 2;
      form.stats = 1;
      return form;
    case Data::out:
      form.stats = 1;
      return form;
    case Data::keys:
    case Data::keys_grad:
      form.planes = 2;
      return form;
    case Data::out_grad:
    case Data::query_grad:
      return form;
  }
  throw InternalError("unknown data");
}

}  // namespace

Problem make_problem(const ProblemShape& shape, const Layout& queries, const Layout& keys) {
  const bool wide = shape.element_bytes == 8;
  return {.batch = shape.batch,
          .heads = shape.heads,
          .key_heads = shape.key_heads,
          .dim = shape.dim,
          .element_bytes = shape.element_bytes,
          .partial_bytes = wide ? 8 : shape.partial_bytes,
          .stat_bytes = wide ? 8 : 4,
          .queries = make_chunks(queries),
          .keys = make_chunks(keys)};
}

int bytes_of(Number number, const Problem& problem) {
  switch (number) {
    case Number::element:
      return problem.element_bytes;
    case Number::partial:
      return problem.partial_bytes;
    case Number::accumulator:
      return problem.stat_bytes;
  }
  throw InternalError("unknown number");
}

int64_t Form::value_bytes(const Problem& problem) const {
  return problem.batch * tokens * heads * planes * problem.dim * bytes_of(values, problem);
}
int64_t Form::bytes(const Problem& problem) const {
  return value_bytes(problem) + problem.batch * tokens * heads * stats * problem.stat_bytes;
}

Form held_form(const Block& block, const PlanHead& head, const Problem& problem) {
  Form form = plain_form(block, head, problem);
  if (!is_partial(block.data)) return form;
  const bool finished = head.slices > 1 && block.slice == kAllHeads;
  form.values = finished && !is_copied(block.data, head, problem) ? Number::element : Number::accumulator;
  if (finished) form.stats = 0;
  return form;
}

Form wire_form(const Message& message, const PlanHead& head, const Problem& problem) {
  Form form = plain_form(message.block, head, problem);
  const bool traded = message.kind == Traffic::all_to_all;
  if (traded) form.stats = 0;
  if (is_partial(message.block.data))
    form.values = traded && !is_copied(message.block.data, head, problem) ? Number::element : Number::partial;
  return form;
}

int64_t rank_work(const Steps& steps, const Problem& problem, const Mask& mask) {
  const Band band(mask, problem.queries.total_tokens(), problem.keys.total_tokens());
  int64_t pairs = 0;
  for (const Step& step : steps)
    if (step.op == Op::attend)
      pairs += count_pairs(band, problem.queries.pieces(step.in.chunks), problem.keys.pieces(step.with.chunks));
  return pairs;
}

}  // namespace startrail
