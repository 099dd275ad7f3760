// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// TensorBoard's event files: TFRecords (tensorflow/core/lib/io/record_writer.h) of Event messages
/// (tensorboard/compat/proto/event.proto and summary.proto), written by hand.
namespace elastrun::exporter {

/// CRC-32C (Castagnoli) of RFC 3720, as TFRecords store it.
std::uint32_t masked_crc32c(std::string_view bytes);
/// Length, its checksum, payload, its checksum; little endian.
std::string tf_record(std::string_view payload);

/// The first record of a file.
std::string tensorboard_version(WallTime when);
struct TensorBoardValue {
  std::string tag;
  double value = 0;                           // kept as float
  const telemetry::Sketch* sketch = nullptr;  // a histogram instead
  double min = 0, max = 0, sum = 0;           // of the values themselves
};
/// Values of one moment and step.
std::string tensorboard_values(WallTime when, std::int64_t step,
                               const std::vector<TensorBoardValue>& values);
/// "events.out.tfevents.SECONDS.HOST.PID.0": one writer for each file.
std::string tensorboard_file_name(WallTime when, std::string_view host, int pid);

/// What TensorboardEventHandler of torch.monitor is for: a scalar NAME.AGGREGATION for each
/// aggregation of a window, a histogram NAME for its sketch, a scalar NAME for each sample. The
/// step is its attribute "step", else the number of the value in its tag (torch has no
/// step, so there all points lie above each other). The tag of a sample that has a "rank" ends in
/// "/rank_N". Gaps (no data) are not written.
class TensorBoardRecords {
 public:
  /// Nothing for what has no place in such a file.
  std::string of(const telemetry::Record& record);

 private:
  std::int64_t step_of(const telemetry::Record& record, const std::string& tag);
  std::string window(const telemetry::Record& record);
  std::map<std::string, std::int64_t> steps_;
};

}  // namespace elastrun::exporter
