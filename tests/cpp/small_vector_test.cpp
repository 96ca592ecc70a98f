// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <meshfuse/base/small_vector.h>

namespace meshfuse {
namespace {

using List = SmallVector<int32_t, 4>;

List counted(int32_t n) {
  List list;
  for (int32_t i = 0; i < n; ++i) list.push_back(i);
  return list;
}

class SmallVectorTest : public testing::TestWithParam<int32_t> {};

TEST_P(SmallVectorTest, CopiesAndMovesKeepTheValues) {
  const std::vector<int32_t> want = counted(GetParam());
  List list = counted(GetParam());
  EXPECT_EQ(list, want);
  const List copy = list;
  EXPECT_EQ(copy, list);
  const List moved = std::move(list);
  EXPECT_EQ(moved, want);
  EXPECT_TRUE(list.empty());  // NOLINT(bugprone-use-after-move): it may be filled again
  list.push_back(7);
  EXPECT_EQ(list, (List{7}));
  list = copy;
  EXPECT_EQ(list, want);
  list = counted(2);
  EXPECT_EQ(list, (List{0, 1}));
}

TEST_P(SmallVectorTest, InsertsAndErasesLikeStdVector) {
  const std::vector<int32_t> more = {-1, -2, -3};
  for (int32_t place = 0; place <= GetParam(); ++place) {
    List list = counted(GetParam());
    std::vector<int32_t> want = list;
    list.insert(list.begin() + place, 42);
    want.insert(want.begin() + place, 42);
    EXPECT_EQ(list, want);
    list.insert(list.begin() + place, more.begin(), more.end());
    want.insert(want.begin() + place, more.begin(), more.end());
    EXPECT_EQ(list, want);
    list.erase(list.begin() + place);
    want.erase(want.begin() + place);
    EXPECT_EQ(list, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SmallVectorTest, testing::Values(0, 1, 3, 4, 5, 9));

TEST(SmallVectorOneTest, ComparesSizesAndValues) {
  EXPECT_FALSE(counted(3) == counted(4));
  EXPECT_FALSE((List{1, 2}) == (List{2, 1}));
  EXPECT_EQ(List(3, 7), (List{7, 7, 7}));
}

TEST(SmallVectorOneTest, ThrowsWhereThereIsNoPlace) {
  const List list = counted(2);
  EXPECT_EQ(list.at(1), 1);
  EXPECT_THROW(
      try { static_cast<void>(list.at(2)); } catch (const InternalError& error) {
        EXPECT_NE(std::string(error.what()).find("a list of 2 has no place 2"), std::string::npos);
        throw;
      },
      InternalError);
}

}  // namespace
}  // namespace meshfuse
