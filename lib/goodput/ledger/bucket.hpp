// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace elastrun::goodput {

/// Where a second of the job can go. Each second between job start and now is in exactly one.
enum class Bucket {
  Startup,     // agent start, first rendezvous, first start of workers
  Rendezvous,  // waiting for other nodes
  Running,     // workers run, and no step of this start of them is known: imports, or training;
               // also what its first step takes longer than the others
  Productive,  // steps that were not done again
  Lost,        // steps that were, or will be
  Checkpoint,  // workers said that they save or load
  Restart,     // from a failure to the next start of workers
  Stopping,    // from the end of the workers or a signal to the end of the job
  Queued,      // between the end of one submission of the job and the start of the next
  // What workers say that they do; each ends with Running.
  Initialization,  // of accelerators
  Preparation,     // of the training: building the model, compiling
  DataLoading,     // steps wait for data
  Custom,          // events with names of their own: logging
  Hang,            // no progress for longer than --hang-timeout, from the last step on
  Evaluation,
  Stalled,      // by how much a step that never came lasted beyond the usual time of one
  Unexplained,  // by how much a step was far longer than usual: work, or something not told; or
                // before its computation began, as --goodput auto tells
};
constexpr std::size_t kBuckets = 17;
/// "startup", "device_init", ...: as in reports.
std::string_view bucket_name(Bucket bucket);
/// Where the reference's monitoring books it: "PROGRAM_STARTUP", "WASTED_PROGRESS", ...; of
/// Checkpoint its saves. What it has no word for is "OTHER", and so is what workers did of whom no
/// step is known. Not of Productive, which is not a loss.
std::string_view badput_source(Bucket bucket, bool steps_known);
constexpr std::string_view kRestoreSource = "CHECKPOINT_RESTORE";

/// Where the time of a phase goes that a script or a recorder calls `name`, in letters of any case:
/// "eval" is Evaluation, "save" Checkpoint, "train" Running, and what is not known Custom.
Bucket bucket_of_phase(std::string_view name);
/// Of a phase that is Checkpoint: whether the name says loading, or saving; none: neither.
std::optional<bool> says_loading(std::string_view name);

}  // namespace elastrun::goodput
