// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a worker written in C++ may tell its elastrun agent; the twin of the Python package, with
/// the same promises: nothing blocks, nothing throws because of the channel, and without an agent
/// every call is a few nanoseconds. C++17, no library needed. Packets: elastrun-protocol(7).
/// To copy it, copy the folder: its headers find each other beside themselves.

#include "agent_channel.hpp"
#include "samples.hpp"
#include "stat.hpp"
#include "told_events.hpp"
