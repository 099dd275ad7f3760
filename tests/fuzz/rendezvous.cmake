# SPDX-License-Identifier: Apache-2.0
elastrun_fuzz_target(rendezvous_frame SOURCES tests/fuzz/rendezvous_frame_fuzz.cpp
  lib/net/frame.cpp lib/net/seal.cpp lib/net/bytes.cpp lib/rendezvous/messages.cpp
  lib/rendezvous/message_parts.cpp lib/rendezvous/ranks.cpp lib/rendezvous/world.cpp
  lib/rendezvous/roster.cpp lib/rendezvous/gathering.cpp
  lib/core/asio.cpp lib/core/json.cpp lib/core/text.cpp lib/core/utf8.cpp lib/core/error.cpp
  lib/core/fmt.cpp LINKS -lcrypto)
elastrun_fuzz_target(etcd_reader SOURCES tests/fuzz/etcd_reader_fuzz.cpp
  lib/rendezvous/etcd_reader.cpp lib/rendezvous/election_entry.cpp lib/rendezvous/message_parts.cpp
  lib/net/base64.cpp
  lib/core/asio.cpp lib/core/json.cpp lib/core/text.cpp lib/core/utf8.cpp lib/core/error.cpp
  lib/core/fmt.cpp LINKS -lcrypto)
