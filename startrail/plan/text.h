// Plans as text a person can read and a program can read back; json.h has them as JSON. One line a step:
//   gather query 0 -> query 0,1 over 0:0 1:1               rank 0 brings chunk 0, rank 1 brings chunk 1
//   exchange keys 0,8 to 2 and keys 6,14 from 6
//   attend query 0,1 x keys 0,8
//   merge out 0,1 -> out 0 over 0:0 1:1
//   delta out_grad 0 with saved 0 -> query 0
//   all_to_all query 0 -> query 0,1 /0 over 0:0 1:1        "/0" is the slice of the heads
// A block without chunks, or a member that brings none, says "none". The head names the chunks' owners unless rank r
// owns chunk r: "plan forward ranks 2 slices 1 owners 0,0,1".
#pragma once

#include <string>
#include <string_view>

#include "startrail/plan/plan.h"

namespace startrail {

std::string to_text(Pass pass);
std::string to_text(Data data);
std::string to_text(Op op);
std::string to_text(const Block& block);
std::string to_text(const Step& step);
std::string to_text(const Plan& plan);

// Reads what to_text wrote; UserError with the line number and what was expected there.
Plan plan_from_text(std::string_view text);

}  // namespace startrail
