// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/discovery/locator.hpp"

#include "core/host.hpp"
#include "core/lifetime.hpp"
#include "net/dialer.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/coordinator/coordinator.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

class FixedLocator final : public Locator {
 public:
  FixedLocator(boost::asio::io_context& loop, Clock& clock,
               std::shared_ptr<const net::Sealer> sealer, FixedLocatorSettings settings)
      : loop_(loop),
        clock_(clock),
        sealer_(std::move(sealer)),
        settings_(std::move(settings)),
        resolver_(loop, clock) {}
  ~FixedLocator() override { lifetime_.end(); }

  void locate(Answer<Place> answer) override {
    answer_ = std::move(answer);
    if (host_ || settings_.is_host == false || decided_) return give(place());
    // The own name needs no look-up, which may lead to loopback or nowhere (Debian's 127.0.1.1);
    // nor does "0.0.0.0", which says "here".
    const std::string& host = settings_.endpoint.host;
    if (settings_.is_host == true || host == host_name() || net::is_wildcard(host))
      return host_here();
    resolver_.resolve(settings_.endpoint.host, std::chrono::seconds(30),
                      [this](const Result<net::Addresses>& found) { decide(found); });
  }

  // From now on this job has its host. Before, one that had our port may have ended, and left the
  // place to us.
  void accept(const Place&) override { decided_ = true; }

  void cancel() override {
    resolver_.cancel();
    answer_ = nullptr;
  }

  bool elects() const override { return false; }
  bool serves_others() const override { return host_ && host_->serves_others(); }
  void share_store(const store::Stores& stores) override {
    stores_ = stores;
    if (host_) host_->share_store(stores);
  }

  void retire(const std::string& why, Duration limit, Then retired) override {
    if (!host_) return boost::asio::post(loop_, std::move(retired));
    host_->retire(why, false, limit, std::move(retired));
  }

 private:
  Place place() const {
    net::Endpoint endpoint = settings_.endpoint;
    if (host_) endpoint = {own_, host_->port()};
    return {std::move(endpoint), 0, host_ != nullptr};
  }

  void give(Result<Place> place) {
    boost::asio::post(loop_, [this, alive = lifetime_.token(), place = std::move(place)]() mutable {
      if (!alive) return;
      // Taken out first: the answer may call locate() again, which sets the next one.
      if (const auto answer = std::exchange(answer_, {})) answer(std::move(place));
    });
  }

  void decide(const Result<net::Addresses>& found) {
    // A name that is not known yet may be tomorrow's: the session asks again.
    if (!found) return give(std::unexpected(found.error()));
    // Another machine's for now: the name's address may be of an earlier host, and be ours
    // tomorrow.
    if (!std::ranges::all_of(*found, net::is_own_address)) return give(place());
    const auto outward =
        std::ranges::find_if(*found, [](const auto& address) { return !address.is_loopback(); });
    if (outward != found->end()) own_ = outward->to_string();
    host_here();
  }

  void host_here() {
    const auto address = net::parse_address(settings_.endpoint.host);
    const bool number = !address.is_unspecified() && net::is_own_address(address);
    if (number) own_ = address.to_string();
    // The others may know this node by another name or address than it knows itself by. A node that
    // is alone stays where it was told; a name of our own may lead to loopback here and to another
    // address elsewhere.
    std::string at = "::";
    const bool alone = settings_.coordinator.rules.max_nodes == 1;
    if (alone && (number || settings_.endpoint.host == "localhost")) at = own_;
    // bind(2) decides among the agents of one machine: the kernel gives the port to one of them.
    auto opened = open(at);
    // Another program may have the port at another address alone; but no other machine comes over
    // loopback.
    const bool unreachable = !alone && settings_.is_host == true && address.is_loopback();
    if (!opened && number && at != own_ && !unreachable) opened = open(own_);
    if (opened) {
      host_ = std::move(*opened);
      host_->share_store(stores_);
      return give(place());
    }
    if (settings_.is_host == true) {
      return give(
          fail(Code::Rendezvous,
               fmt::format("this node was told to host the rendezvous at {}, but {}",
                           net::format_endpoint(settings_.endpoint.host, settings_.endpoint.port),
                           opened.error().text)));
    }
    // Another agent on this machine was first.
    give(place());
  }

  Result<std::unique_ptr<Host>> open(const std::string& address) {
    return Host::open(loop_, clock_, sealer_, {.address = address, .port = settings_.endpoint.port},
                      settings_.coordinator);
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const std::shared_ptr<const net::Sealer> sealer_;
  const FixedLocatorSettings settings_;
  net::Resolver resolver_;
  Answer<Place> answer_;
  bool decided_ = false;           // that another process hosts
  std::string own_ = "127.0.0.1";  // how this node calls on its own host
  std::unique_ptr<Host> host_;
  store::Stores stores_;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<Locator> make_fixed_locator(boost::asio::io_context& loop, Clock& clock,
                                            std::shared_ptr<const net::Sealer> sealer,
                                            FixedLocatorSettings settings) {
  return std::make_unique<FixedLocator>(loop, clock, std::move(sealer), std::move(settings));
}

}  // namespace elastrun::rendezvous
