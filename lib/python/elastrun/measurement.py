# SPDX-License-Identifier: Apache-2.0
"""Recorders of goodput and the events that their record_event() takes; see elastrun.goodput.

    from elastrun import measurement

    recorder = measurement.GoodputRecorder("night", "goodput_night", logging_enabled=rank == 0)
    with recorder.record_event(measurement.Event.JOB):
        with recorder.record_event(measurement.Event.TRAINING_PREP):
            model = prepare()
        for step in range(first_step, last_step):
            with recorder.record_event(measurement.Event.STEP, step):
                train(model, step)
            with recorder.record_event(measurement.Event.CUSTOM, "evaluation"):
                evaluate(model)
"""
from __future__ import annotations

from elastrun.goodput import ElasticGoodputRecorder, Event, GoodputRecorder

__all__ = ["ElasticGoodputRecorder", "Event", "GoodputRecorder"]
