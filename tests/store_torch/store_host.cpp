// SPDX-License-Identifier: Apache-2.0
// Hosts one workers' store for tests and measurements written in other languages.
//
//   store_host [ADDRESS [PORT]]
//
// Prints "PORT n" and serves until its standard input ends. A line on standard input is a command:
// "statistics" prints one line of numbers, "afresh" empties the store.
#include "core/log.hpp"
#include "store/server.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

namespace {

using namespace elastrun;

class Host {
 public:
  Host(boost::asio::io_context& loop, store::Server& server)
      : loop_(loop), server_(server), input_(loop, ::dup(STDIN_FILENO)) {
    listen();
  }

 private:
  void listen() {
    boost::asio::async_read_until(input_, boost::asio::dynamic_buffer(line_), '\n',
                                  [this](auto error, std::size_t size) {
                                    if (error) return loop_.stop();
                                    obey(line_.substr(0, size - 1));
                                    line_.erase(0, size);
                                    listen();
                                  });
  }

  void obey(const std::string& command) {
    if (command == "afresh") server_.start_afresh();
    const auto now = server_.statistics();
    fmt::print("accepted {} refused {} requests {} cut_off {} connections {} keys {}\n",
               now.accepted, now.refused, now.requests, now.cut_off, now.connections, now.keys);
    std::fflush(stdout);
  }

  boost::asio::io_context& loop_;
  store::Server& server_;
  boost::asio::posix::stream_descriptor input_;
  std::string line_;
};

}  // namespace

int main(int argc, char** argv) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;  // a descriptor a connection, and there may be many
  ::setrlimit(RLIMIT_NOFILE, &files);
  boost::asio::io_context loop(1);
  const std::string address = argc > 1 ? argv[1] : "127.0.0.1";
  const auto port = static_cast<std::uint16_t>(argc > 2 ? std::atoi(argv[2]) : 0);
  auto server = store::Server::listen(loop, address, port, {});
  if (!server) {
    log::error("store", "{}", server.error().text);
    return 1;
  }
  fmt::print("PORT {}\n", (*server)->port());
  std::fflush(stdout);
  Host host(loop, **server);
  loop.run();
  return 0;
}
