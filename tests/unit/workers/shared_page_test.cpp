// SPDX-License-Identifier: Apache-2.0
#include "workers/shared_page.hpp"

#include <cmath>
#include <csignal>
#include <cstring>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/wait.h>

namespace elastrun::workers {
namespace {

template <class T>
void put(std::string& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

std::string page_of_a_worker() {
  std::string bytes(SharedPage::kSize, '\0');
  put(bytes, 16, 4242);
  put(bytes, 20, 2);
  put<std::int64_t>(bytes, 32, 120);
  put<std::int64_t>(bytes, 40, 1'500'000'000);
  bytes.replace(48, 4, "eval");
  put<std::int64_t>(bytes, 112, 4711);
  put<std::int64_t>(bytes, 80, 2'000'000'000);
  for (const auto& [at, value, name] :
       {std::tuple{128, 0.25, std::string("model\0loss", 10)},
        std::tuple{256, -3.0, std::string("opt\0\x1b[31mlr\xff", 12)}}) {
    const auto offset = static_cast<std::size_t>(at);
    put(bytes, offset + 8, value);
    put<std::int64_t>(bytes, offset + 16, 7);
    put(bytes, offset + 24, static_cast<std::uint32_t>(name.size()));
    bytes.replace(offset + 28, name.size(), name);
  }
  return bytes;
}

TEST_CASE("shared page: what a worker wrote is read, its text without what steers a terminal") {
  const auto page = parse_page(page_of_a_worker());
  CHECK(page.writer == 4242);
  CHECK(page.importer == 4711);
  CHECK(page.step == 120);
  CHECK(page.step_at == TimePoint(std::chrono::milliseconds(1500)));
  CHECK(page.phase == "eval");
  CHECK(page.phase_at == TimePoint(std::chrono::seconds(2)));
  REQUIRE(page.series.size() == 2);
  CHECK(page.series[0] == PageContents::Series{"model", "loss", 0.25, 7});
  CHECK(page.series[1] == PageContents::Series{"opt", "lr\uFFFD", -3, 7});
}

TEST_CASE("shared page: an untouched one says nothing") {
  const auto made = SharedPage::make();
  REQUIRE(made);
  const auto page = made->read();
  CHECK(page.writer == 0);
  CHECK_FALSE(page.step);
  CHECK(page.phase.empty());
  CHECK(page.series.empty());
}

TEST_CASE("shared page: step 0 counts once there was one, negative steps and times do not") {
  std::string bytes(SharedPage::kSize, '\0');
  put<std::int64_t>(bytes, 40, 1);
  CHECK(parse_page(bytes).step == 0);
  put<std::int64_t>(bytes, 32, -1);
  CHECK_FALSE(parse_page(bytes).step);
  put<std::int64_t>(bytes, 32, 5);
  put<std::int64_t>(bytes, 40, -1);
  CHECK_FALSE(parse_page(bytes).step);
}

TEST_CASE("shared page: whatever the bytes are, something comes of them") {
  const auto good = page_of_a_worker();
  for (std::size_t size = 0; size <= 512; ++size) (void)parse_page(good.substr(0, size));
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(SharedPage::kSize, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (round % 2 != 0) put(bytes, 20, 0xffff'ffffu);
    const auto page = parse_page(bytes);
    CHECK(page.series.size() <= 127);
    for (const auto& series : page.series) {
      CHECK(series.group.size() + series.name.size() <= 3 * 100);  // U+FFFD has three bytes
      CHECK((series.group + series.name + page.phase).find('\x1b') == std::string::npos);
    }
  }
}

TEST_CASE("shared page: who reads while another writes sees value and count of one moment") {
  const auto page = SharedPage::make();
  REQUIRE(page);
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::open(page->path().c_str(), O_RDWR | O_CLOEXEC);
    auto* words = static_cast<std::uint64_t*>(
        ::mmap(nullptr, SharedPage::kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (words == MAP_FAILED) ::_exit(1);
    const auto whole = page_of_a_worker();
    std::memcpy(words, whole.data(), whole.size());
    for (std::uint64_t i = 1;; ++i) {
      const double value = static_cast<double>(i);
      __atomic_store_n(words + 16, 2 * i - 1, __ATOMIC_SEQ_CST);
      std::memcpy(words + 17, &value, sizeof value);
      __atomic_store_n(words + 18, i, __ATOMIC_SEQ_CST);
      __atomic_store_n(words + 16, 2 * i, __ATOMIC_SEQ_CST);
      ::usleep(50);
    }
  }
  int torn = 0, seen = 0;
  for (int i = 0; i < 20'000 && seen < 500; ++i) {
    const auto now = page->read();
    if (now.series.empty() || now.series[0].count < 8) continue;
    ++seen;
    torn += now.series[0].value != static_cast<double>(now.series[0].count);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(seen > 0);
  // After four tries it is read as it is: the writer may have lost its processor in the middle.
  CHECK(torn <= seen / 10);
}

}  // namespace
}  // namespace elastrun::workers
