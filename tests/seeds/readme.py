# SPDX-License-Identifier: Apache-2.0
"""Each example of ml-goodput-measurement's README, with what it leaves out: a configuration, a JAX
that has one process, a model. What they print must not depend on the time that they take.
"""
from __future__ import annotations

_STAGE = """
import contextlib, datetime, enum, glob, os, struct, time, types
from typing import Sequence
from event_files import values
from ml_goodput_measurement import goodput
from ml_goodput_measurement import monitoring
os.makedirs("tb", exist_ok=True)
config = types.SimpleNamespace(
    run_name="RUN", steps=4, eval_interval=2, sdc_check_interval=3, monitor_goodput=True,
    tensorboard_dir="tb/RUN", goodput_upload_interval_seconds=600)
jax = types.SimpleNamespace(process_index=lambda: 0, devices=lambda: [])
np = types.SimpleNamespace(arange=range)
def nothing(*given):
    return given
load_next_batch = load_batch = run_train_step = run_step_evaluation = run_sdc_check = nothing
train_data = val_data = data_iterator = example_batch = model = None
start_step, state, argv = 0, None, []
goodput_logger_name = logger_name = f'goodput_{config.run_name}' # Here run_name is unique.

goodput_recorder = goodput.GoodputRecorder(
 job_name=config.run_name,
 logger_name=goodput_logger_name,
 logging_enabled=(jax.process_index() == 0)
 )

def settle():
    "Until the end of the job is in the log, which an agent writes: its time passes no more."
    goodput_recorder.flush()
    calculator, until, totals = None, time.monotonic() + 60, []
    while (len(totals) < 2 or totals[-1] != totals[-2]) and time.monotonic() < until:
        time.sleep(0.01)
        calculator = calculator or goodput.GoodputCalculator(config.run_name, goodput_logger_name)
        with contextlib.suppress(ValueError):
            calculator.get_job_goodput()
            totals.append(calculator.get_job_goodput_details()["total_elapsed_time"])

def recorded():
    settle()
    calculator = goodput.GoodputCalculator(config.run_name, goodput_logger_name)
    percent, badput, step = calculator.get_job_goodput(include_badput_breakdown=True)
    print(step, 0 <= percent <= 100, sorted(badput[goodput.BadputType.CUSTOM_BADPUT_EVENTS]))

def scalars(folder):
    "Step and value by tag, of all event files below it."
    return {tag: (step, round(struct.unpack("<f", value[2][0])[0], 3))
            for path in sorted(glob.glob(folder + "/**/events.out.tfevents.*", recursive=True))
            for step, tag, value in values(open(path, "rb").read())}
"""

# Twenty steps of a second, of which a disruption loses two; with an evaluation and two checks.
_LOGGED = """
def at(seconds):
    return (datetime.datetime(2024, 12, 16, 12, tzinfo=datetime.timezone.utc)
            + datetime.timedelta(seconds=seconds))

def start(when, first, last):
    goodput_recorder.record_job_start_time(at(when))
    goodput_recorder.record_tpu_init_start_time(at(when + 1))
    goodput_recorder.record_tpu_init_end_time(at(when + 4))
    goodput_recorder.record_training_preparation_start_time(at(when + 4))
    goodput_recorder.record_training_preparation_end_time(at(when + 9))
    now = when + 10
    for step in range(first, last):
        goodput_recorder.record_data_loading_start_time(at(now))
        goodput_recorder.record_data_loading_end_time(at(now + 0.25))
        goodput_recorder.record_step_start_time(step, at(now + 0.25))
        now += 4 if step == first else 1.25
        for kind, often in (("eval_step", 8), ("sdc_check", 5)):
            if step % often == often - 1:
                goodput_recorder.record_custom_badput_event_start_time(at(now), kind)
                now += 0.5
                goodput_recorder.record_custom_badput_event_end_time(at(now), kind)
    return now

start(0, 0, 10)
goodput_recorder.record_job_end_time(at(start(60, 8, 20)))
settle()
"""

_BREAKDOWN = """
goodput_calculator = goodput.GoodputCalculator(job_name=config.run_name,
                                               logger_name=goodput_logger_name)
"""

_PROGRAMS = {
    "readme: start and end of the job, and its steps": """
def main(argv: Sequence[str]) -> None:
 # Initialize configs…
 goodput_recorder.record_job_start_time(datetime.datetime.now())
 # Device Initialization and device scanning…
 # Set up other things for the main training loop…
 # Main training loop
 train_loop(config)
 goodput_recorder.record_job_end_time(datetime.datetime.now())

def train_loop(config, state=None):
 # Set up mesh, model, state, checkpoint manager…

 # Initialize functional train arguments and model parameters…

 # Define the compilation

 for step in np.arange(start_step, config.steps):
   goodput_recorder.record_step_start_time(step)
   # Training step…

 return state
main(argv)
recorded()
""",
    "readme: initialization, preparation and loading of data": """
def train_loop(config, state=None):
  goodput_recorder.record_tpu_init_start_time()
  # Set up mesh, model, state, checkpoint manager…
  goodput_recorder.record_tpu_init_end_time()
  goodput_recorder.record_training_preparation_start_time()
  # Set up training set, initialize functional train args and model parameters…
  # Define the compilation
  # Set up any metrics collectors
  goodput_recorder.record_training_preparation_end_time()

  for step in np.arange(start_step, config.steps):
    goodput_recorder.record_data_loading_start_time()
    example_batch = load_next_batch(data_iterator, globals()["example_batch"], config)
    goodput_recorder.record_data_loading_end_time()
    goodput_recorder.record_step_start_time(step)
    # Training step…

  return state
goodput_recorder.record_job_start_time(datetime.datetime.now())
train_loop(config)
goodput_recorder.record_job_end_time(datetime.datetime.now())
recorded()
""",
    "readme: custom events": """
def train_loop(config, state=None):
  goodput_recorder.record_training_preparation_start_time()
  # Initialize training config, setup model, load checkpoint...
  goodput_recorder.record_training_preparation_end_time()

  for step in range(config.steps):
    goodput_recorder.record_data_loading_start_time()
    batch = load_batch(train_data)
    goodput_recorder.record_data_loading_end_time()

    goodput_recorder.record_step_start_time(step)
    # Run training step...
    run_train_step(step, state)

    if step % config.eval_interval == 0:
      # Record a custom badput event for evaluation
      goodput_recorder.record_custom_badput_event_start_time(
          custom_badput_event_type="eval_step")
      run_step_evaluation(model, val_data)
      goodput_recorder.record_custom_badput_event_end_time(
          custom_badput_event_type="eval_step")

    if step % config.sdc_check_interval == 0:
      # Record a custom badput event for SDC check
      goodput_recorder.record_custom_badput_event_start_time(
          custom_badput_event_type="sdc_check")
      run_sdc_check(state)
      goodput_recorder.record_custom_badput_event_end_time(
          custom_badput_event_type="sdc_check")

  return state
goodput_recorder.record_job_start_time(datetime.datetime.now())
train_loop(config)
goodput_recorder.record_job_end_time(datetime.datetime.now())
recorded()
""",
    "readme: the goodput of a job, also with Pathways": _LOGGED + """
goodput_calculator = goodput.GoodputCalculator(job_name=config.run_name, logger_name=goodput_logger_name)
total_goodput, _, _ = goodput_calculator.get_job_goodput()
print(f"Total job goodput: {total_goodput:.2f}%")
goodput_calculator = goodput.GoodputCalculator(job_name=config.run_name, logger_name=goodput_logger_name, using_pathways=True)
total_goodput, badput_breakdown, _ = goodput_calculator.get_job_goodput()
print(f"Total job goodput: {total_goodput:.2f}%", badput_breakdown)
""",
    "readme: the types of badput": """
class BadputType(enum.Enum):
  TPU_INITIALIZATION = 1
  TRAINING_PREP = 2
  PROGRAM_STARTUP = 3
  DATA_LOADING_SYNC = 4
  DATA_LOADING_ASYNC = 5
  UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
  UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
  WASTED_PROGRESS_FROM_DISRUPTION = 8
  INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
  CUSTOM_BADPUT_EVENTS = 10
  OTHER = 11
print([(one.name, one.value == BadputType[one.name].value) for one in goodput.BadputType
       if one.name in BadputType.__members__])
""",
    "readme: the breakdown": _LOGGED + _BREAKDOWN + """
BadputType = goodput.BadputType
goodput, badput_breakdown, last_step = goodput_calculator.get_job_goodput(include_badput_breakdown=True)
goodput_percent, goodput = goodput, types.SimpleNamespace(BadputType=BadputType)
print(f"Last step recorded: {last_step}")
print(f"Goodput: {goodput_percent:.2f}%")
print(f"Badput due to TPU initialization: {badput_breakdown[goodput.BadputType.TPU_INITIALIZATION]:.2f}%")
print(f"Badput due to training preparation: {badput_breakdown[goodput.BadputType.TRAINING_PREP]:.2f}%")
print(f"Badput due to program startup: {badput_breakdown[goodput.BadputType.PROGRAM_STARTUP]:.2f}%")
print(f"Badput due to data loading: {badput_breakdown[goodput.BadputType.DATA_LOADING_SYNC]:.2f}%")
print(f"Badput due to wasted progress from disruption: {badput_breakdown[goodput.BadputType.WASTED_PROGRESS_FROM_DISRUPTION]:.2f}%")
print(f"Badput due to infrastructure recovery from disruption: {badput_breakdown[goodput.BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION]:.2f}%")
print(f"Badput due to checkpoint save: {badput_breakdown[goodput.BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME]:.2f}%")
print(f"Badput due to checkpoint restore: {badput_breakdown[goodput.BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME]:.2f}%")
print(f"Badput due to step evaluation: {badput_breakdown[goodput.BadputType.CUSTOM_BADPUT_EVENTS].get('EVAL_STEP', 0.0):.2f}%")
print(f"Badput due to SDC checks: {badput_breakdown[goodput.BadputType.CUSTOM_BADPUT_EVENTS].get('SDC_CHECK', 0.0):.2f}%")
print(f"Badput from unknown source: {badput_breakdown[goodput.BadputType.OTHER]:.2f}%")
""",
    "readme: a window of time": _LOGGED + _BREAKDOWN + """
def convert_pst_to_utc(text):
    pst = datetime.timezone(datetime.timedelta(hours=-8))
    return datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=pst).astimezone(
        datetime.timezone.utc)
# Example usage
start_time_str = "2024-12-16 1:05:00"
start_time_utc = convert_pst_to_utc(start_time_str)
end_time_str = "2024-12-17 2:00:00"
end_time_utc = convert_pst_to_utc(end_time_str)
current_goodput, badput_breakdown, last_step, total_time, disruptions = goodput_calculator.get_job_goodput_interval(start_time_utc, end_time_utc)
print(round(current_goodput, 4), last_step, round(total_time, 4), disruptions)
print(sorted((one.name, sorted(value.items()) if isinstance(value, dict) else round(value, 4))
             for one, value in badput_breakdown.items()))
""",
    "readme: the monitor and its uploader": _LOGGED + """
goodput_monitoring_enabled = config.monitor_goodput and jax.process_index() == 0 # Check for configs whether or not the enable monitoring.

goodput_monitor = monitoring.GoodputMonitor(
      job_name=config.run_name,
      logger_name=logger_name,
      tensorboard_dir=config.tensorboard_dir,
      upload_interval=config.goodput_upload_interval_seconds,
      monitoring_enabled=True,
      include_badput_breakdown=True,
      max_logs_retention_period=7 * 24 * 60 * 60, # Optional: override default 7 days retention
    )
goodput_monitor.start_goodput_uploader()
goodput_monitor.stop_goodput_uploader()
for one in sorted(scalars(config.tensorboard_dir).items()):
    print(one)
""",
    "readme: a monitor with Pathways that ends without a flush": _LOGGED + """
goodput_monitor = monitoring.GoodputMonitor(
      job_name=config.run_name,
      logger_name=logger_name,
      tensorboard_dir=config.tensorboard_dir,
      upload_interval=config.goodput_upload_interval_seconds,
      monitoring_enabled=True,
      include_badput_breakdown=True,
      pathway_enabled=True
    )
goodput_monitor.start_goodput_uploader()
goodput_monitor.stop_goodput_uploader(skip_final_flush=True)
print(scalars(config.tensorboard_dir))
""",
    "readme: rolling windows": _LOGGED + """
goodput_monitor = monitoring.GoodputMonitor(
    config.run_name, logger_name, config.tensorboard_dir, config.goodput_upload_interval_seconds,
    monitoring_enabled=True, include_badput_breakdown=True)
goodput_monitor.start_rolling_window_goodput_uploader(rolling_windows_seconds=[60, 300, 900])
goodput_monitor.stop_rolling_window_goodput_uploader()
goodput_monitor.stop_rolling_window_goodput_uploader(skip_final_flush=True)
print("stopped")
""",
    "readme: with and without Google Cloud Monitoring": _LOGGED + """
from ml_goodput_measurement import goodput_utils
for enabled in (True, False):
    gcp_options = goodput_utils.GCPOptions(
          project_id=None, # If None, the library will automatically identify from GCE internal metadata
          location=None, # If None, the library will automatically identify from GCE internal metadata
          replica_id='0', # Default is '0'
          acc_type=None, # If None, the library will automatically identify from GCE internal metadata
          cluster_name=None, # Optional GKE cluster name
          enable_gcp_goodput_metrics=enabled,
          enable_gcp_step_deviation_metrics=enabled,
        )

    goodput_monitor = monitoring.GoodputMonitor(
          job_name=config.run_name,
          logger_name=logger_name,
          tensorboard_dir=config.tensorboard_dir,
          upload_interval=config.goodput_upload_interval_seconds,
          monitoring_enabled=True,
          include_badput_breakdown=True,
          include_step_deviation=True,
          configured_ideal_step_time=None, # Optional, the library will compute ideal step time if it is not provided
          gcp_options=gcp_options
        )
    goodput_monitor.start_step_deviation_uploader()
    goodput_monitor.stop_step_deviation_uploader()
for one in sorted(scalars(config.tensorboard_dir).items()):
    print(one)
""",
    "readme: elastic goodput": """
from ml_goodput_measurement import goodput_elastic, monitoring_elastic
job_name, tensorboard_dir, is_lead_host = config.run_name, config.tensorboard_dir, True
elastic = types.SimpleNamespace(get_active_slice_indices=lambda: [0, 1],
                                get_slice_to_devices=lambda devices: {0: 0, 1: 1, 2: 2})
pathwaysutils = types.SimpleNamespace(is_pathways_backend_used=lambda: True, elastic=elastic)
elastic_manager = types.SimpleNamespace(active_slice_indices=[0, 1])
gcp_options = monitoring_elastic.GCPOptions(enable_gcp_goodput_metrics=True)

goodput_monitor = monitoring_elastic.ElasticGoodputMonitor(
    job_name=job_name,
    logger_name=logger_name,
    tensorboard_dir=tensorboard_dir,
    upload_interval=600,  # which the README leaves out
    include_badput_breakdown=True,
    include_slice_efficiency=True,
    gcp_options=gcp_options,
)
goodput_monitor.start_goodput_uploader()

recorder = goodput_elastic.ElasticGoodputRecorder(job_name, logger_name, is_lead_host)

def record_slice_state(recorder, active_slices_override=None):
    if not recorder or not pathwaysutils.is_pathways_backend_used():
        return

    available_slices = len(pathwaysutils.elastic.get_active_slice_indices())
    active_slices = active_slices_override if active_slices_override is not None else len(elastic_manager.active_slice_indices)
    total_slices = len(pathwaysutils.elastic.get_slice_to_devices(jax.devices()))

    recorder.record_elastic_slice_counts(
        available_slices=available_slices,
        active_slices=active_slices,
        total_slices=total_slices,
    )

# Example: When a scale-up or slice-down is triggered by your coordinator,
# track the incoming wait time and push a 0-active bounding state to the recorder:
def record_elastic_scale():
    recorder.record_elastic_wait_start_time(event_type="elastic_scale_up")
    record_slice_state(recorder, active_slices_override=0)

recorder.record_job_start_time()
record_slice_state(recorder)
for step in range(3):
    recorder.record_step_start_time(step)
record_elastic_scale()
recorder.record_elastic_wait_end_time(event_type="elastic_scale_up")
record_slice_state(recorder)
recorder.record_step_start_time(3)
recorder.record_job_end_time()
recorder.flush()
settle()
calculator = goodput_elastic.ElasticGoodputCalculator(job_name, logger_name)
percent, badput, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
print(0 <= percent <= 100, last_step, sorted(one.name for one in badput))
""",
}

# A run has a name that no other has, as the README demands.
README = {name: _STAGE.replace("RUN", f"run_{place}") + text
          for place, (name, text) in enumerate(_PROGRAMS.items())}
