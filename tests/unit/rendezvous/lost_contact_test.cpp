// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/lost_contact.hpp"

#include <doctest/doctest.h>

using namespace elastrun::rendezvous;

TEST_CASE("lost contact: who has lost more than are left is cut off") {
  LostContact contact;
  CHECK(!contact.silent(Phase::Running, 2));
  CHECK(contact.silent(Phase::Joining, 1));
}

TEST_CASE("lost contact: half of them prove nothing") {
  LostContact contact;
  CHECK(!contact.silent(Phase::Running, 3));
  CHECK(!contact.silent(Phase::Joining, 2));
}

TEST_CASE("lost contact: a complete world needs no other coordinator") {
  LostContact contact;
  for (int spare = 0; spare < 3; ++spare) CHECK(!contact.silent(Phase::Running, 2));
}

TEST_CASE("lost contact: those who were lost before the last world was formed do not count") {
  LostContact contact;
  CHECK(!contact.silent(Phase::Running, 4));
  CHECK(!contact.silent(Phase::Joining, 3));
  CHECK(!contact.silent(Phase::Running, 2));
  CHECK(!contact.silent(Phase::Joining, 2));
}

TEST_CASE("lost contact: who comes makes good for one who was lost") {
  LostContact contact;
  contact.came();
  CHECK(!contact.silent(Phase::Running, 3));
  contact.came();
  CHECK(!contact.silent(Phase::Joining, 1));
}
