# SPDX-License-Identifier: Apache-2.0
# Runs goodput_vectors on files with one fault each: PROGRAM, FOLDER.
file(MAKE_DIRECTORY ${FOLDER})

function(expect name text status words)
  file(WRITE ${FOLDER}/${name}.json "${text}")
  execute_process(COMMAND ${PROGRAM} ${FOLDER}/${name}.json
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL status OR NOT output MATCHES "${words}")
    message(FATAL_ERROR
            "${name}: exit status ${result} (not ${status}) or no '${words}' in: ${output}")
  endif()
endfunction()

expect(cut "{\"scenarios\": [" 2 "no valid")
expect(other "[1, 2]" 2 "an array 'scenarios' was expected")
expect(none "{\"scenarios\": []}" 1 "0 passed, 0 failed")
set(job [=[{"scenarios": [{"name": "one", "calculator": "base", "entries": [
 {"log_time": 0, "payload": {"job_start_time": 0}}, {"log_time": 1, "payload": @ENTRY@}],
 "calls": [{"call": "@CALL@", "now": 10, "result": {"goodput_pct": @ANSWER@}}]}]}]=])
set(ENTRY "{\"job_end_time\": 10}")
set(CALL job)
set(ANSWER 0)
string(CONFIGURE "${job}" text @ONLY)
expect(right "${text}" 0 "1 passed, 0 failed")
set(ANSWER 50)
string(CONFIGURE "${job}" text @ONLY)
expect(answer "${text}" 1 "FAILED one job: .goodput_pct: 0, not 50.*0 passed, 1 failed")
set(CALL shout)
string(CONFIGURE "${job}" text @ONLY)
expect(call "${text}" 2 "unknown call 'shout'")
set(CALL job)
set(ENTRY "{\"step_start_time\": 3}")
string(CONFIGURE "${job}" text @ONLY)
expect(entry "${text}" 2 "'one': an entry: 'step_count' is missing")
