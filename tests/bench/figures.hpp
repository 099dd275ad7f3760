// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"

#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

/// The figures of a benchmark of coordinator and agents, for people or as JSON.
namespace elastrun::bench {

/// What one phase has cost.
struct Cost {
  double seconds = 0;      // on the clock
  double coordinator = 0;  // processor time
  double agents = 0;       // processor time of all of them together
};

struct Figure {
  std::string name;
  int agents = 0;
  double value = 0;
  std::string unit = "ms";
  double target = 0;  // at most; 0: none
};

/// Collects the figures; shows them at once, or all as JSON at the end.
class Table {
 public:
  explicit Table(bool json) : json_(json) {}
  void add(Figure figure) {
    if (!json_) print(figure);
    figures_.push_back(std::move(figure));
  }
  /// The phase that has taken that long, with the parts that belong to each side.
  void add(const std::string& name, int agents, const Cost& cost, double target) {
    add({name, agents, cost.seconds * 1e3, "ms", target});
    add({"coordinator's processor time, " + name, agents, cost.coordinator * 1e3, "ms", 0});
    add({"agents' processor time, " + name, agents, cost.agents * 1e3, "ms", 0});
  }
  ~Table() {
    if (!json_) return;
    json::array list;
    for (const Figure& figure : figures_) {
      json::object row{{"name", figure.name},
                       {"agents", figure.agents},
                       {"value", figure.value},
                       {"unit", figure.unit}};
      if (figure.target > 0) row["target"] = figure.target;
      list.emplace_back(std::move(row));
    }
    fmt::print("{}\n", json::serialize(list));
  }

 private:
  static void print(const Figure& figure) {
    fmt::print("{:>6} agents  {:<74} {:>9.1f} {:<5}{}\n", figure.agents, figure.name, figure.value,
               figure.unit, figure.target > 0 ? fmt::format("target {}", figure.target) : "");
    std::fflush(stdout);
  }

  const bool json_;
  std::vector<Figure> figures_;
};

}  // namespace elastrun::bench
