// SPDX-License-Identifier: Apache-2.0
#include "workers/run_path.hpp"

namespace elastrun::workers {

const std::string_view kRunPathProgram = R"PY(
import sys

def elastrun_run_path():
    import faulthandler, os, runpy
    del sys.argv[0]
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

elastrun_run_path()
)PY";

}  // namespace elastrun::workers
