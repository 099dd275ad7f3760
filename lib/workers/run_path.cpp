// SPDX-License-Identifier: Apache-2.0
#include "workers/run_path.hpp"

namespace elastrun::workers {

const std::string_view kRunPathProgram = R"PY(
import sys

def elastrun_wait_for_the_others(channel):
    # As torch's: a worker that ends early takes down what others still use (a store, shared memory).
    import socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.connect(channel)
            agent.send(b'{"kind":"returned"}')
            agent.recv(1)  # the agent ends the connection when all have returned
    except OSError:
        pass

def elastrun_run_path():
    import faulthandler, os, runpy
    del sys.argv[0]
    channel = os.path.abspath(os.environ.get("ELASTRUN_CHANNEL") or os.devnull)
    worker = os.getpid()
    try:
        faulthandler.enable(all_threads=True)
    except Exception:
        pass
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        import json, time, traceback
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path:
            info = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
            text = "%s: %s" % (type(error).__name__, error)
            with open(path, "w") as out:
                json.dump({"message": {"message": text, "extraInfo": info}}, out)
        raise
    if os.getpid() == worker:  # and not a child that it forked
        elastrun_wait_for_the_others(channel)

elastrun_run_path()
)PY";

}  // namespace elastrun::workers
