# SPDX-License-Identifier: Apache-2.0
"""Programs as the documents and manuals of the originals show them, with what they leave out.

Those of torch name its modules; for elastrun `torch.distributed.elastic` is replaced by `elastrun`,
`torch.monitor` by `elastrun.monitor` and `ml_goodput_measurement` by `elastrun`. Each prints
what can be compared. Those of OURS show what the documents promise and the originals do not have.
"""
from __future__ import annotations

TORCH = {
    "metrics: the duration of a function, for one group": """
import time
import torch.distributed.elastic.metrics as metrics
metrics.configure(metrics.NullMetricHandler())
metrics.configure(metrics.ConsoleMetricHandler(), "my_module")
def my_method():
    start = time.time()
    end = time.time()
    metrics.put_metric("calculate_latency", int(end - start), "my_module")
    metrics.put_metric("elsewhere", 1, "other")
my_method()
""",
    "metrics: @prof": """
import torch.distributed.elastic.metrics as metrics
metrics.configure(metrics.ConsoleMetricHandler(), "foobar")
metrics.configure(metrics.ConsoleMetricHandler(), "torchelastic")
@metrics.prof
def foo():
    pass
class Bar:
    @metrics.prof
    def baz(self):
        raise KeyError
    @metrics.prof(group="foobar")
    def qux(self):
        pass
foo()
try:
    Bar().baz()
except KeyError:
    Bar().qux()
""",
    "metrics: a handler of the user's": """
import torch.distributed.elastic.metrics as metrics
from torch.distributed.elastic.metrics.api import MetricData, MetricHandler, getStream
class StdoutMetricHandler(metrics.MetricHandler):
    def emit(self, metric_data):
        ts = metric_data.timestamp
        group = metric_data.group_name
        name = metric_data.name
        value = metric_data.value
        print(f"[{ts}][{group}]: {name}={value}")
metrics.configure(StdoutMetricHandler(), group="my_app")
metrics.put_metric("my_metric", 3, "my_app")
getStream("my_app").add_value("by_stream", 0.5)
print(MetricHandler is metrics.MetricHandler, MetricData._fields)
""",
    "events: made, written and read": """
from torch.distributed.elastic import events
from torch.distributed.elastic.events.api import Event, EventSource
event = events.Event(name="test_event", source=events.EventSource.WORKER, timestamp=7,
                     metadata={"key1": "value1", "key2": 2})
events.record(event)
print(event, Event.deserialize(event.serialize()) == event, EventSource.WORKER)
""",
    "timer: a worker that hangs, over a queue": """
import multiprocessing as mp, time
import torch.distributed.elastic.timer as timer
from torch.distributed.elastic.timer.local_timer import LocalTimerServer
context = mp.get_context("fork")
message_queue = context.Queue()
server = timer.LocalTimerServer(message_queue, max_interval=0.01)
server.start()
def trainer_func(message_queue):
    timer.configure(timer.LocalTimerClient(message_queue))
    with timer.expires(after=60):
        pass
    with timer.expires(after=0.1):
        time.sleep(600)
worker = context.Process(target=trainer_func, args=(message_queue,))
worker.start()
worker.join()
print(worker.exitcode)
server.stop()
""",
    "timer: no client, and one of the user's": """
import torch.distributed.elastic.timer as timer
from torch.distributed.elastic.timer.api import TimerClient
timer.configure(None)
try:
    with timer.expires(after=1):
        print("never")
except RuntimeError as error:
    print("RuntimeError")
class Mine(TimerClient):
    def acquire(self, scope_id, expiration_time):
        print("acquire", scope_id, expiration_time > 1e9)
    def release(self, scope_id):
        print("release", scope_id)
timer.configure(timer_client=Mine())
with timer.expires(after=1, scope="a"):
    print("inside")
""",
    "timer: a server of the user's": """
import torch.distributed.elastic.timer as timer
from torch.distributed.elastic.timer.api import RequestQueue
class Queue(RequestQueue):
    def size(self):
        return 2
    def get(self, size, timeout):
        return [timer.TimerRequest(1, "a", 0), timer.TimerRequest(worker_id=2, scope_id="b",
                                                                 expiration_time=-1)]
class Server(timer.TimerServer):
    def register_timers(self, timer_requests):
        print(timer_requests == [timer.TimerRequest(1, "a", 0), timer.TimerRequest(2, "b", -1)])
    def clear_timers(self, worker_ids):
        print("clear", worker_ids)
    def get_expired_timers(self, deadline):
        return {1: [timer.TimerRequest(1, "a", 0)]}
    def _reap_worker(self, worker_id):
        return True
Server(Queue(), 1)._run_watchdog()
""",
    "timer: the line of a request over a FIFO": """
import torch.distributed.elastic.timer as timer
from torch.distributed.elastic.timer.debug_info_logging import log_debug_info_for_expired_timers
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerRequest
request = FileTimerRequest(worker_pid=7, scope_id="a\\u00e9", expiration_time=1.5, signal=9)
print(request.to_json(), request == FileTimerRequest(7, "a\\u00e9", 1.5, 9), request.worker_pid)
log_debug_info_for_expired_timers("run", {7: [request.to_json()]})
""",
    "monitor: events and handlers": """
from datetime import datetime
from torch.monitor import Event, log_event, register_event_handler, unregister_event_handler
handle = register_event_handler(lambda event: print(sorted(event.data.items())))
event = Event(name="mine.TestEvent", timestamp=datetime.now(),
              data={"str": "a string", "float": 1234.0, "int": 1234})
log_event(event)
unregister_event_handler(handle)
log_event(event)
""",
    "monitor: a Stat": """
from datetime import timedelta
from torch.monitor import Aggregation, Stat, register_event_handler, unregister_event_handler
handle = register_event_handler(lambda event: print(event.name, sorted(event.data.items())))
s = Stat("asdf", (Aggregation.SUM, Aggregation.COUNT), timedelta(hours=100), 3)
s.add(1)
s.add(2)
print(s.name, s.count)
s.add(3)
print(s.count, sorted((one.name, value) for one, value in s.get().items()))
s.add(4)
print(s.count)
unregister_event_handler(handle)
""",
    "monitor: into TensorBoard": """
from datetime import timedelta
from torch.monitor import (Aggregation, Stat, TensorboardEventHandler, register_event_handler,
                           unregister_event_handler)
class Writer:
    def add_scalar(self, tag, value, **how):
        print(tag, value, how["walltime"] > 1e9)
handle = register_event_handler(TensorboardEventHandler(Writer()))
s = Stat("tb", (Aggregation.SUM,), timedelta(hours=1), 5)
for i in range(5):
    s.add(i)
unregister_event_handler(handle)
""",
}

_GOODPUT = """
import datetime, types
from ml_goodput_measurement import goodput
class Kept:
    def __init__(self):
        self.entries = []
    def write_cloud_logging_entry(self, entry):
        self.entries.append(entry)
    def flush(self):
        pass
"""

GOODPUT = {
    "goodput: the entries of a recorder": _GOODPUT + """
kept = Kept()
recorder = goodput.GoodputRecorder("j", "l", True, kept)
at = datetime.datetime.fromtimestamp(1_700_000_000, datetime.timezone.utc)
recorder.record_job_start_time(at)
recorder.record_tpu_init_start_time(at)
recorder.record_tpu_init_end_time(at)
recorder.record_training_preparation_start_time(at)
recorder.record_training_preparation_end_time(at)
for step in range(2):
    recorder.record_data_loading_start_time(at)
    recorder.record_data_loading_end_time(at)
    recorder.record_step_start_time(step, at)
recorder.record_custom_badput_event_start_time(at, "eval_step")
recorder.record_custom_badput_event_end_time(at, "eval_step")
recorder.record_job_end_time(at)
for entry in kept.entries:
    print(sorted(entry.items()))
""",
    "goodput: a recorder of slices, and what is not told": _GOODPUT + """
from ml_goodput_measurement import goodput_elastic
at = datetime.datetime.fromtimestamp(1_700_000_000, datetime.timezone.utc)
kept = Kept()
recorder = goodput_elastic.ElasticGoodputRecorder("j", "l", True, kept)
recorder.record_elastic_slice_counts(2, 4, 3, at)
recorder.record_elastic_wait_start_time("scale_up", at)
recorder.record_elastic_wait_end_time("scale_up", at)
recorder.record_elastic_reinit_start_time(at)
recorder.record_elastic_reinit_end_time(at)
recorder.record_checkpoint_progress(3, at)
goodput.GoodputRecorder("j", "l", False, kept).record_job_start_time(at)
for entry in kept.entries:
    print(sorted(entry.items()))
""",
    "goodput: statistics of steps": _GOODPUT + """
from ml_goodput_measurement import goodput_utils
times = [2.0, 2.5, 2.25, 2.0, 9.0, 2.5, 2.0, 0.5]
print(round(goodput_utils.compute_ideal_step_time(times), 9))
print(goodput_utils.get_anomalous_and_normal_step_times(times[:7]))
print(round(goodput_utils.get_extra_time_from_anomalous_steps(times[:7]), 9))
print(goodput_utils.get_timestamp_from_log_entry({"job_name": "j", "step_start_time": 1.5}))
""",
    "goodput: the names of bad time": """
from ml_goodput_measurement import goodput, monitoring
print([one.name for one in goodput.BadputType])
print(monitoring.GCPOptions(enable_gcp_goodput_metrics=False).enable_gcp_goodput_metrics)
""",
}

OURS = {
    "metrics: the names of the document": """
import elastrun.metrics as metrics
metrics.configure(metrics.NullMetricsHandler())
metrics.configure(metrics.ConsoleMetricsHandler(), "my_module")
print(metrics.NullMetricsHandler is metrics.NullMetricHandler)
""",
    "events: a handler of the user's": """
import elastrun.events as events
class MyEventHandler(events.EventHandler):
    def record(self, event: events.Event):
        print(event.name, event.source.value)
events.configure(MyEventHandler())
events.record(events.Event("e", events.EventSource.AGENT))
""",
    "goodput: the training loop, the monitor and the analysis": """
import contextlib, os, tempfile
folder = tempfile.mkdtemp()
os.environ["ELASTRUN_GOODPUT_FILE"] = folder + "/goodput.jsonl"
from elastrun import goodput, measurement, monitoring
goodput_recorder = measurement.GoodputRecorder(
    job_name="seed", logger_name="goodput_seed", logging_enabled=True)
def train_loop():
    with goodput_recorder.record_event(measurement.Event.JOB):
        with goodput_recorder.record_event(measurement.Event.ACCELERATOR_INIT):
            pass
        with goodput_recorder.record_event(measurement.Event.TRAINING_PREP):
            pass
        for step in range(4):
            with goodput_recorder.record_event(measurement.Event.DATA_LOADING):
                pass
            with goodput_recorder.record_event(measurement.Event.STEP, step):
                pass
            if step % 2 == 0:
                with goodput_recorder.record_event(measurement.Event.CUSTOM, "eval_step"):
                    pass
@contextlib.contextmanager
def maybe_monitor_goodput():
    goodput_monitor = monitoring.GoodputMonitor(
        job_name="seed", logger_name="goodput_seed", tensorboard_dir=folder, upload_interval=600,
        monitoring_enabled=True, pathway_enabled=False, include_badput_breakdown=True,
        gcp_options=monitoring.GCPOptions(enable_gcp_goodput_metrics=False))
    goodput_monitor.start_goodput_uploader()
    try:
        yield
    finally:
        goodput_monitor.stop_goodput_uploader()
with maybe_monitor_goodput():
    train_loop()
goodput_recorder.flush()
calculator = goodput.GoodputCalculator(job_name="seed", logger_name="goodput_seed")
percent, badput, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
print(0 <= percent <= 100, last_step,
      goodput.BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION in badput,
      len(os.listdir(folder + "/goodput")))
""",
    "monitor: the RFC's counters and its collector": """
from elastrun.monitor import Aggregation, Collector, Stat
BATCH_LATENCY = Stat("training.batch.latency", {Aggregation.MEAN, Aggregation.HISTOGRAM},
                     max_samples=2)
collector = Collector("training.*")
for batch in range(3):
    with BATCH_LATENCY.add_time():
        pass
class Writer:  # torch's takes numbers alone
    def add_scalar(self, key, value):
        float(value)
tensorboard_writer = Writer()
stats = collector.report()
for k, v in stats.items():
    tensorboard_writer.add_scalar(k, v)
print(sorted(stats), stats["training.batch.latency.count"],
      sum(count for end, count in collector.histogram("training.batch.latency")))
collector.reset()
print(collector.report())
""",
    "goodput: rolling windows and a span of time": """
import datetime, os, tempfile, time
folder = tempfile.mkdtemp()
os.environ["ELASTRUN_GOODPUT_FILE"] = folder + "/goodput.jsonl"
from elastrun import goodput, measurement, metrics, monitoring
told = []
class Kept(metrics.MetricHandler):
    def emit(self, metric_data):
        told.append(metric_data.name)
metrics.configure(Kept(), "goodput")
start_time_utc = datetime.datetime.now(datetime.timezone.utc)
recorder = measurement.GoodputRecorder("window", "goodput_window", logging_enabled=True)
with recorder.record_event(measurement.Event.JOB):
    for step in range(3):
        with recorder.record_event(measurement.Event.STEP, step):
            time.sleep(0.01)
recorder.flush()
for rolling_window_size in (3600, [60, 3600]):
    rolling_window_monitor = monitoring.GoodputMonitor(
        "window", "goodput_window", tensorboard_dir="", upload_interval=600,
        monitoring_enabled=True, include_badput_breakdown=True)
    try:
        rolling_window_monitor.start_rolling_window_goodput_uploader(rolling_window_size)
    finally:
        rolling_window_monitor.stop_rolling_window_goodput_uploader()
print([one for one in told if one.startswith("interval_goodput")])
calculator = goodput.GoodputCalculator("window", "goodput_window")
end_time_utc = datetime.datetime.now(datetime.timezone.utc)
goodput_pct, badput, _, _, _ = calculator.get_job_goodput_interval(start_time_utc, end_time_utc)
print(0 < goodput_pct <= 100, goodput.BadputType.OTHER in badput)
""",
    "monitor: the RFC's words for events and counters": """
from elastrun.monitor import (Event, Stat, StatType, log, register_event_handler, stats,
                              unregister_event_handler)
class RdzvEvent(Event):
    def __init__(self, run_id, rank, message):
        super().__init__(type="torch.elastic.RdzvEvent", timestamp=None,
                         metadata={"run_id": run_id, "rank": rank}, message=message)
handle = register_event_handler(
    lambda event: print(event.type, event.message, event.metadata))
event = RdzvEvent(run_id="1234", rank=0, message="rendezvous started")
log(event)
log("epoch", "the first")
unregister_event_handler(handle)
BATCH_LATENCY = Stat(key="training.batch.seconds",
                     aggregations={StatType.MEAN, StatType.HISTOGRAM})
BATCH_LATENCY.add(0.5)
print("training.batch.seconds" in stats("training.**"), BATCH_LATENCY.count)
""",
    "monitor: an event needs no time": """
from elastrun.monitor import (Event, log_event, register_event_handler,
                              unregister_event_handler)
handle = register_event_handler(lambda event: print(event.name, event.severity, len(event.id)))
log_event(Event("torch.elastic.RdzvEvent", data={"rank": 0}, severity="warn"))
unregister_event_handler(handle)
""",
}

# What those of OURS print.
EXPECTED = {
    "metrics: the names of the document": "True\n",
    "events: a handler of the user's": "e AGENT\n",
    "goodput: the training loop, the monitor and the analysis": "True 3 True 1\n",
    "monitor: the RFC's counters and its collector":
        "['training.batch.latency.count', 'training.batch.latency.histogram', "
        "'training.batch.latency.mean'] 3.0 3\n{'training.batch.latency.count': 0.0}\n",
    "goodput: rolling windows and a span of time":
        "['interval_goodput.3600', 'interval_goodput.60', 'interval_goodput.3600']\nTrue True\n",
    "monitor: the RFC's words for events and counters":
        "torch.elastic.RdzvEvent rendezvous started {'run_id': '1234', 'rank': 0, "
        "'message': 'rendezvous started'}\nepoch the first {'message': 'the first'}\nTrue 1\n",
    "monitor: an event needs no time": "torch.elastic.RdzvEvent warn 16\n",
}
