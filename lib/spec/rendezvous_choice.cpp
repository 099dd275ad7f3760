// SPDX-License-Identifier: Apache-2.0

#include "core/text.hpp"
#include "spec/host_environment.hpp"
#include "spec/option_values.hpp"
#include "spec/sources.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::spec {
namespace {

using Refused = std::optional<Refusal>;

struct Found {
  std::string address, source;

  void add(const std::string& level, std::string_view from) {
    if (level.empty()) return;
    address += (address.empty() ? "" : ".") + level;
    source += (source.empty() ? "" : ", ") + std::string(from);
  }
};

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

class RendezvousChoice {
 public:
  RendezvousChoice(Resolved& resolved, const HostEnvironment& around,
                   const std::optional<Placement>& place)
      : resolved_(resolved), around_(around), place_(place) {}

  Refused decide() {
    // In this order: the backend says which keys count, and one of the keys what an endpoint is.
    for (const auto step :
         {&RendezvousChoice::apply_single_node_rules, &RendezvousChoice::take_backend,
          &RendezvousChoice::read_conf, &RendezvousChoice::decide_endpoint,
          &RendezvousChoice::check_node_rank, &RendezvousChoice::check_meeting_place,
          &RendezvousChoice::warn_of_local_addr, &RendezvousChoice::check_role_restarts,
          &RendezvousChoice::replace_empty_id, &RendezvousChoice::take_topology}) {
      if (auto refusal = (this->*step)()) return refusal;
    }
    return std::nullopt;
  }

 private:
  const std::string& text(Opt id) const { return values_[id].text; }
  void warn(std::string warning) { resolved_.warnings.push_back(std::move(warning)); }

  Refused apply_single_node_rules() {
    std::string why;
    if (values_.is_on("standalone"_opt)) {
      why = "implied by --standalone";
      if (job_.min_nodes > 1) {
        return launcher_refusal(
            fmt::format("--standalone is for one node, but --nnodes {} asks for at least {}",
                        text("nnodes"_opt), job_.min_nodes),
            "leave one of the two out");
      }
    } else if (text("rdzv-backend"_opt) == backend::kStatic && text("rdzv-endpoint"_opt).empty() &&
               !values_.is_given("master-port"_opt) && job_.max_nodes == 1) {
      why = "implied: one node, no rendezvous";
    } else {
      return std::nullopt;
    }
    job_.standalone = true;
    warn_of_replaced();
    values_.imply("rdzv-backend"_opt, std::string(backend::kC10d), why);
    // Port 0: the kernel chooses, so that jobs of one machine do not meet.
    values_.imply("rdzv-endpoint"_opt, "localhost:0", why);
    // A UUID, as torchrun has it; under Slurm an id that a requeue gets again, so that what both
    // have left behind belongs together.
    auto id = single_node_run_id(around_, command());
    if (!id.empty()) why += "; SLURM_JOB_ID, SLURM_STEP_ID";
    values_.imply("rdzv-id"_opt, id.empty() ? around_.make_uuid() : id, why);
    return std::nullopt;
  }

  std::string command() const {
    std::string all = job_.script;
    // With a byte between that no argument can hold: "a b" and "a" "b" are two commands.
    for (const auto& one : job_.script_args) all.append(1, '\0').append(one);
    return all;
  }

  void warn_of_replaced() {
    const bool is_name = values_.is_given("rdzv-id"_opt) && job_.name == text("rdzv-id"_opt);
    std::vector<std::string> names;
    for (const Opt id : {"rdzv-backend"_opt, "rdzv-endpoint"_opt, "rdzv-id"_opt, "master-addr"_opt,
                         "master-port"_opt}) {
      if (!values_.is_given(id) || values_[id].text == row(id).fallback) continue;
      names.push_back(fmt::format("{}={}", spelling(row(id)), values_[id].text));
    }
    if (names.empty()) return;
    const bool asked = values_.is_on("standalone"_opt);
    warn(fmt::format(
        "{} is not used{}: {}{}", join(names, ", "), is_name ? ", except as the job's name" : "",
        asked ? "--standalone overrides it" : "one node without an endpoint gets a random run id",
        asked ? ""
              : " and localhost (as torchrun); to keep it, give --rdzv-backend c10d "
                "--rdzv-endpoint localhost:0"));
  }

  /// Each role that restarts alone needs a store, for which others give out neither a place nor a
  /// port.
  Refused check_role_restarts() {
    if (job_.role_restart.empty() || job_.standalone) return std::nullopt;
    const bool fits =
        job_.rdzv_backend != backend::kStatic && contains(backend::kBuiltIn, job_.rdzv_backend);
    if (fits) return std::nullopt;
    return Refusal{fmt::format("a role that restarts alone ({}) needs another rendezvous than {}",
                               values_["role-restart"_opt].source, job_.rdzv_backend),
                   "use --rdzv-backend c10d, etcd or file"};
  }

  Refused take_backend() {
    job_.rdzv_backend = text("rdzv-backend"_opt);
    job_.rdzv_endpoint = text("rdzv-endpoint"_opt);
    job_.run_id = text("rdzv-id"_opt);
    job_.node_rank_given = values_.is_given("node-rank"_opt);
    const auto& name = job_.rdzv_backend;
    if (name.empty()) {
      return launcher_refusal("A rendezvous backend needs a name, and this one is empty.",
                              "see --rdzv-backend");
    }
    if (contains(backend::kBuiltIn, name) || contains(around_.rdzv_backends, name))
      return std::nullopt;
    std::vector<std::string> names(backend::kBuiltIn.begin(), backend::kBuiltIn.end());
    names.insert(names.end(), around_.rdzv_backends.begin(), around_.rdzv_backends.end());
    const auto near = nearest(name, names);
    return placed(
        launcher_refusal(fmt::format("The rendezvous backend '{}' is not registered.", name),
                         fmt::format("the backends are {}{}", join(names, ", "),
                                     near ? fmt::format("; did you mean {}?", *near) : "")),
        values_["rdzv-backend"_opt]);
  }

  Refused read_conf() {
    auto given = values_["rdzv-conf"_opt];
    auto parts = given.listed ? given.items : rdzv_conf_parts(given.text);
    auto conf = parse_rdzv_conf(parts);
    if (!conf) return placed(conf.error(), given);
    job_.rdzv_conf = std::move(*conf);
    // What stays of the text is for people to see.
    given.text = masked(std::move(parts));
    given.items.clear();
    values_.replace(given);
    // /proc/PID/cmdline is open to all users, unless proc(5) is mounted with hidepid.
    if (given.source.ends_with(" on the command line") && job_.rdzv_conf.contains("password")) {
      warn(
          "--rdzv-conf: everybody on this machine can read password= on a command line (ps); put "
          "it into a file that only you can read, and give password_file=PATH instead");
    }
    if (auto refusal = check_rdzv_conf(job_.rdzv_conf, job_.rdzv_backend, resolved_.warnings)) {
      return placed(*refusal, given);
    }
    if (place_ && place_->is_host && job_.rdzv_backend == backend::kC10d) {
      // emplace() keeps what the user has said. By the rank and not by the address: in a container
      // a node may not know that the endpoint's name is its own.
      job_.rdzv_conf.emplace("is_host", *place_->is_host ? "1" : "0");
    }
    if (place_ && !place_->start.empty()) job_.job_start = place_->start;
    // torchrun hands it to every backend; the static one reads it.
    job_.rdzv_conf.emplace("timeout", "900");
    job_.rendezvous = read_rendezvous_config(job_.rdzv_conf);
    return std::nullopt;
  }

  /// An unset shell variable, as a rule.
  Refused check_empty_place() const {
    const bool by_master = job_.rdzv_backend == backend::kStatic && job_.rdzv_endpoint.empty() &&
                           values_.is_given("master-addr"_opt);
    const Opt id = by_master ? "master-addr"_opt : "rdzv-endpoint"_opt;
    const bool matters =
        by_master || (job_.max_nodes > 1 && contains(backend::kBuiltIn, job_.rdzv_backend));
    if (!matters || !values_.is_given(id) || !trim(text(id)).empty()) return std::nullopt;
    return Refusal{
        fmt::format("{} is empty: the nodes need an address to meet at", spelling(row(id))),
        fmt::format("it comes from {}; is a shell variable not set?", values_[id].source)};
  }

  Refused decide_endpoint() {
    if (auto refusal = check_empty_place()) return refusal;
    if (job_.rdzv_backend == backend::kStatic) return decide_static();
    if (values_.is_given("master-addr"_opt) && text("rdzv-endpoint"_opt).empty()) {
      warn(
          "--master-addr has no effect: only the static backend reads it, when it is given no "
          "--rdzv-endpoint.");
    }
    if (job_.rdzv_backend == backend::kC10d) {
      return job_.rendezvous.meets_in_file ? std::nullopt : check_endpoints({job_.rdzv_endpoint});
    }
    if (job_.rdzv_backend.starts_with(backend::kEtcd)) {
      return check_endpoints(split(job_.rdzv_endpoint, ','));
    }
    if (job_.rdzv_backend == backend::kFile && trim(job_.rdzv_endpoint).empty()) {
      return launcher_refusal("the file backend needs --rdzv-endpoint DIR",
                              "a directory that all nodes can write, on a shared file system");
    }
    return std::nullopt;
  }

  /// The refusal of an endpoint, with the option, variable or key that it came from.
  Refusal named(Refusal refusal) const {
    const bool of_master = values_["rdzv-endpoint"_opt].origin == Origin::Implied;
    const auto port = parse_int(text("master-port"_opt));
    const bool is_port = text("master-port"_opt).empty() || (port && *port >= 0 && *port <= 65535);
    const auto& given = values_[!of_master ? "rdzv-endpoint"_opt
                                : is_port  ? "master-addr"_opt
                                           : "master-port"_opt];
    refusal.hint += (refusal.hint.empty() ? "it comes from " : "; it comes from ") + given.source;
    return refusal;
  }

  Refused check_endpoints(const std::vector<std::string>& endpoints) const {
    for (std::string_view endpoint : endpoints) {
      // People write the endpoints of etcd so.
      for (const std::string_view scheme : {"http://", "https://"}) {
        if (endpoint.starts_with(scheme)) endpoint.remove_prefix(scheme.size());
      }
      const auto answer = parse_endpoint(endpoint);
      if (!answer) return named(answer.error());
    }
    return std::nullopt;
  }

  Refused decide_static() {
    if (job_.min_nodes != job_.max_nodes) {
      warn(fmt::format("--nnodes {}: the static backend always waits for all {} nodes",
                       text("nnodes"_opt), job_.max_nodes));
    }
    const bool master_given =
        values_.is_given("master-addr"_opt) || values_.is_given("master-port"_opt);
    if (job_.rdzv_endpoint.empty()) {
      const std::string port = text("master-port"_opt);
      // Without brackets its last group would be read as the port.
      const bool bare_six = job_.master_addr.contains(':') && !job_.master_addr.starts_with('[');
      job_.rdzv_endpoint =
          fmt::format("{}:{}", bare_six ? "[" + job_.master_addr + "]" : job_.master_addr,
                      port.empty() ? kStaticPort : *parse_int(port));
      values_.imply("rdzv-endpoint"_opt, job_.rdzv_endpoint,
                    "implied by --master-addr, --master-port");
    } else if (master_given) {
      warn("--master-addr and --master-port are not used: --rdzv-endpoint is given");
    }
    const auto endpoint = parse_endpoint(job_.rdzv_endpoint);
    if (!endpoint) return named(endpoint.error());
    if (!endpoint->port) {
      return launcher_refusal(
          fmt::format("port is missing in endpoint: {}. Try to specify "
                      "--master-port",
                      job_.rdzv_endpoint));
    }
    job_.master_addr = endpoint->host;
    job_.master_port = *endpoint->port;
    return std::nullopt;
  }

  Refused check_node_rank() {
    const auto rank = *parse_int(text("node-rank"_opt));
    // What a scheduler says orders the nodes with every backend; a user's word is for static alone.
    if (values_["node-rank"_opt].origin == Origin::Scheduler) {
      if (place_ && place_->scheduler == "PyTorchJob" && rank >= job_.max_nodes) {
        return Refusal{fmt::format("RANK {} is not a rank of {} nodes", rank, job_.max_nodes),
                       "their number comes from " + values_["nnodes"_opt].source};
      }
      job_.node_rank = static_cast<int>(rank);
      return std::nullopt;
    }
    if (job_.rdzv_backend != backend::kStatic) {
      if (rank != 0) {
        warn(fmt::format("--node-rank has no effect with the backend {}: only static reads it.",
                         job_.rdzv_backend));
      }
      return std::nullopt;
    }
    if (rank < 0 || rank >= job_.max_nodes) {
      return placed(
          launcher_refusal(
              fmt::format("--node-rank {} is not a rank of {} node{}", rank, job_.max_nodes,
                          job_.max_nodes == 1 ? "" : "s"),
              fmt::format("expected a number from 0 to {}; --nnodes says how many nodes there are",
                          job_.max_nodes - 1)),
          values_["node-rank"_opt]);
    }
    job_.node_rank = static_cast<int>(rank);
    // torchrun hands it to its static handler.
    job_.rdzv_conf["rank"] = fmt::to_string(rank);
    return std::nullopt;
  }

  /// Nodes that may be on several machines need a place that all of them reach.
  Refused check_meeting_place() {
    const bool fixed_ranks = job_.rdzv_backend == backend::kStatic;
    const auto& config = job_.rendezvous;
    const bool in_c10d = job_.rdzv_backend == backend::kC10d && !config.meets_in_file;
    if (!fixed_ranks && !in_c10d) return std::nullopt;
    const bool hosts = fixed_ranks ? job_.node_rank == 0 : config.is_host.value_or(true);
    const auto endpoint = parse_endpoint(job_.rdzv_endpoint);
    if (job_.min_nodes > 1 && endpoint->port == 0) {
      return named({fmt::format("'{}' has port 0, which no other node knows", job_.rdzv_endpoint),
                    "give the same port on all nodes"});
    }
    const auto& host = endpoint->host;
    // "0.0.0.0", "::"
    if (!hosts && host.find_first_not_of("0.:") == host.npos) {
      return named(
          {fmt::format("'{}' means this node, but {}", job_.rdzv_endpoint,
                       fixed_ranks ? fmt::format("--node-rank {} is not the one that hosts "
                                                 "the rendezvous",
                                                 job_.node_rank)
                                   : "is_host=0 says that it does not host the rendezvous"),
           "give the address of the node that does"});
    }
    if (job_.max_nodes == 1 || values_.is_given("rdzv-endpoint"_opt)) return std::nullopt;
    if (fixed_ranks && values_.is_given("master-addr"_opt)) return std::nullopt;
    const auto where = fixed_ranks ? job_.rdzv_endpoint : fmt::format("localhost:{}", kC10dPort);
    const std::string what = fixed_ranks ? "--master-addr" : "--rdzv-endpoint";
    warn(hosts
             ? fmt::format("{} is not given: this node waits for the others at {}, which other "
                           "machines cannot reach; nodes there need {} with the address of {}",
                           what, where, what,
                           fixed_ranks ? "this one" : "one node, the same on all")
             : fmt::format("{} is not given: node 0 is looked for at {}, on this machine; if it is "
                           "another one, give its address",
                           what, where));
    return std::nullopt;
  }

  /// Workers of other machines would look for the store at their own loopback.
  Refused warn_of_local_addr() {
    const auto place = parse_endpoint(job_.rdzv_endpoint);
    const bool on_one_machine = place && is_loopback(place->host);
    if (job_.max_nodes == 1 || on_one_machine || !is_loopback(job_.local_addr)) return {};
    warn(fmt::format(
        "--local-addr {}: other machines cannot reach this node there; leave it out, or give an "
        "address of this machine that they reach",
        job_.local_addr));
    return std::nullopt;
  }

  Refused replace_empty_id() {
    if (!job_.run_id.empty()) return std::nullopt;
    if (job_.min_nodes > 1 && contains(backend::kBuiltIn, job_.rdzv_backend)) {
      return Refusal{"--rdzv-id is empty: the nodes need the same id to meet",
                     "it comes from " + values_["rdzv-id"_opt].source};
    }
    job_.run_id = random_integer();
    values_.imply("rdzv-id"_opt, job_.run_id, "random, because it was empty");
    warn(fmt::format("--rdzv-id is empty: the job gets the random run id {}", job_.run_id));
    return std::nullopt;
  }

  // The integer of a UUID, as torchrun: 128 bits in decimal.
  std::string random_integer() const {
    __extension__ unsigned __int128 number = 0;
    for (const char c : around_.make_uuid()) {
      if (c == '-') continue;
      number = number * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return fmt::format("{}", number);
  }

  /// Slurm ends the address with the node ("s0.s2.node7", and "node7" alone where it knows no
  /// network). Without it: two nodes of one switch are to have the same address, and may have each
  /// other's rank. The pattern ("switch.switch.node", "block.node") tells how many levels there
  /// are: names of nodes may have points, too.
  std::string slurm_switches() const {
    const auto levels = split(around_.variable("SLURM_TOPOLOGY_ADDR").value_or(""), '.');
    const auto kinds = split(around_.variable("SLURM_TOPOLOGY_ADDR_PATTERN").value_or(""), '.');
    if (kinds.back() != "node" || levels.size() < kinds.size()) return {};
    return join({levels.begin(), levels.begin() + static_cast<std::ptrdiff_t>(kinds.size()) - 1},
                ".");
  }

  Found find_address() {
    Found found;
    const auto switches = slurm_switches();
    if (const auto problem = topology_problem(switches); switches.empty() || problem.empty()) {
      found.add(switches, "SLURM_TOPOLOGY_ADDR");
    } else {
      warn(fmt::format("SLURM_TOPOLOGY_ADDR {}: {}; it is ignored", in_quotes(switches), problem));
    }
    // Behind the switches: racks that share NVLink lie within a block or below a switch.
    found.add(around_.nvlink_domain(), "NVLink");
    return found;
  }

  /// True if the coordinator gives out the ranks.
  bool orders_nodes() {
    const auto& name = job_.rdzv_backend;
    const bool fixed = name == backend::kStatic;
    if (!fixed && std::ranges::count(backend::kBuiltIn, name) > 0) return true;
    warn(fmt::format("--rank-order topology has no effect with the backend {}: {} gives the ranks",
                     name, fixed ? "--node-rank" : "its handler"));
    return false;
  }

  /// Fills `topology`: what --topology says, or what Slurm and the GPUs' driver tell, which is
  /// asked for nothing but --rank-order topology. What these tell may be wrong or missing, and
  /// refuses no job_.
  Refused take_topology() {
    const auto given = values_["topology"_opt];
    if (const auto problem = topology_problem(given.text);
        !given.text.empty() && !problem.empty()) {
      return Refusal{fmt::format("{}: {}: {}", given.source, in_quotes(given.text), problem),
                     "expected levels with points between them, as zone1.rack7"};
    }
    job_.topology = given.text;
    if (!job_.rank_order_topology) {
      // In the environment of all nodes of a cluster it is right all the same.
      if (given.origin == Origin::CommandLine)
        warn("--topology has no effect without --rank-order topology");
      return std::nullopt;
    }
    if (job_.standalone || !orders_nodes()) return std::nullopt;
    Found found{given.text, given.source};
    if (found.address.empty()) {
      found = find_address();
      job_.topology = found.address;
      values_.imply("topology"_opt, found.address,
                    found.address.empty() ? "by host name: neither Slurm nor the driver tells"
                                          : found.source);
    }
    resolved_.notes.push_back(
        job_.topology.empty()
            ? "Ranks by topology: this node has no address, its host name orders it"
            : fmt::format("Ranks by topology: the address of this node is {} ({})", job_.topology,
                          found.source));
    return std::nullopt;
  }

  Resolved& resolved_;
  JobSpec& job_ = resolved_.spec;
  Values& values_ = resolved_.values;
  const HostEnvironment& around_;
  const std::optional<Placement>& place_;
};

}  // namespace

std::optional<Refusal> choose_rendezvous(Resolved& job, const HostEnvironment& around,
                                         const std::optional<Placement>& place) {
  return RendezvousChoice(job, around, place).decide();
}

}  // namespace elastrun::spec
