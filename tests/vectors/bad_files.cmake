# SPDX-License-Identifier: Apache-2.0
# Runs tcpstore_vectors on files with one fault each: PROGRAM, RECORDINGS, FOLDER.
file(MAKE_DIRECTORY ${FOLDER})
file(READ ${RECORDINGS} good)

function(expect name text status words)
  file(WRITE ${FOLDER}/${name}.json "${text}")
  execute_process(COMMAND ${PROGRAM} ${FOLDER}/${name}.json
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL status OR NOT output MATCHES "${words}")
    message(FATAL_ERROR
            "${name}: exit status ${result} (not ${status}) or no '${words}' in: ${output}")
  endif()
endfunction()

string(SUBSTRING "${good}" 0 5000 half)
expect(cut "${half}" 2 "is no JSON")
expect(empty "" 2 "is no JSON")
expect(other "[1, 2]" 2 "'conversations' was expected")
expect(none "{\"conversations\": []}" 2 "no conversations")
set(one [=[{"conversations": [{"name": "ping", "client_to_server_hex": "00cef7853c0d01000000",
 "server_to_client_hex": "@ANSWER@", "closed_by_server": false, "steps": [
 {"conn": "A", "op": "@OP@", "hex": "@SENT@"},
 {"conn": "A", "op": "recv", "hex": "01000000"}]}]}]=])
set(SENT 00cef7853c0d01000000)
set(ANSWER 01000000)
set(OP send)
string(CONFIGURE "${one}" text @ONLY)
expect(right "${text}" 0 "1 passed, 0 failed")
set(OP shout)
string(CONFIGURE "${one}" text @ONLY)
expect(operation "${text}" 2 "'ping': a step has the unknown op 'shout'")
set(OP send)
set(SENT 0g)
string(CONFIGURE "${one}" text @ONLY)
expect(digits "${text}" 2 "no even run of hexadecimal digits")
set(SENT 00cef7853c0d02000000)
string(CONFIGURE "${one}" text @ONLY)
expect(damaged "${text}" 2 "do not send what client_to_server_hex says")
string(REPLACE 0d01000000 0d02000000 text "${text}")
expect(answer "${text}" 1 "FAILED ping.*0 passed, 1 failed")
