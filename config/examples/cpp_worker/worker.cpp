// SPDX-License-Identifier: Apache-2.0
// A worker in C++ that tells its agent what it does, with one header and no library:
//   c++ -std=c++17 -I PREFIX/include worker.cpp -o worker
//   elastrun --worker-lib --nproc-per-node 2 --no-python ./worker
// --worker-lib gives each worker a page, from which the report of a failure takes what it last did.
#include <chrono>
#include <cmath>
#include <elastrun/worker/elastrun.hpp>

namespace tell = elastrun::worker;

int main() {
  static tell::Metric loss("loss", "model");  // summed up, told once a second
  tell::Stat seconds("step.seconds", {tell::Aggregation::Mean, tell::Aggregation::Max},
                     std::chrono::minutes(1));
  tell::event("data.ready", {{"samples", 1'000'000}, {"shuffled", true}});
  for (int step = 0; step < 1000; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    const tell::Expires timer(60);  // or this worker is ended, with its stack in the report
    loss.put(std::exp(-step / 200.0));
    tell::step(step);
    seconds.add(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  tell::checkpoint_done(999);
}
