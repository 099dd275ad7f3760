# SPDX-License-Identifier: Apache-2.0
# cmake -DTEXT=FILE -DHEADER=FILE -DFUNCTION=NAMESPACE::NAME -DSOURCE=OUT -P EmbedText.cmake: a C++
# source that returns the text of a file, without blanks at the starts of its lines.
file(READ ${TEXT} text)
string(REGEX REPLACE "\n[ \t]+" "\n" text "${text}")
string(REGEX REPLACE "::([a-z_]+)$" "" space ${FUNCTION})
string(REGEX REPLACE "^.*::" "" name ${FUNCTION})
file(WRITE ${SOURCE} "#include \"${HEADER}\"\n\nnamespace ${space} {\n\n"
  "std::string_view ${name}() {\n  return R\"~~~(${text})~~~\";\n}\n\n}  // namespace ${space}\n")
