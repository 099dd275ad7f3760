// SPDX-License-Identifier: Apache-2.0
#include "export/otlp_sink.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::exporter;

TEST_CASE("otlp target: URLs of collectors") {
  CHECK(*parse_otlp_url("http://collector") == OtlpTarget{{"collector", 4318}, false, ""});
  CHECK(*parse_otlp_url("https://c:443/otlp/v2/") == OtlpTarget{{"c", 443}, true, "/otlp/v2"});
  CHECK(*parse_otlp_url("http://[::1]:9/") == OtlpTarget{{"::1", 9}, false, ""});
}

TEST_CASE("otlp target: what is no such URL is refused with the reason") {
  for (const char* bad :
       {"", "http:/", "http://", "ftp://host", "host:4318", "http://host:0", "http://host:99999",
        "http://u:p@host", "http://h/a b", "http://h/?x=1", "http://h/\r\nX: 1", "http://h#x"}) {
    CAPTURE(bad);
    const auto target = parse_otlp_url(bad);
    REQUIRE(!target);
    CHECK(target.error().code == Code::Usage);
    CHECK(target.error().text.find("http://HOST") != std::string::npos);
  }
}

TEST_CASE("otlp target: headers of OTEL_EXPORTER_OTLP_HEADERS") {
  using Headers = std::vector<std::pair<std::string, std::string>>;
  CHECK(parse_otlp_headers("").empty());
  CHECK(parse_otlp_headers("api-key=a%20b%2Cc, x = y=z") ==
        Headers{{"api-key", "a b,c"}, {"x", "y=z"}});
  CHECK(parse_otlp_headers("none,=x,a b=c,a=%0d%0aEvil: 1,ok=%zz") == Headers{{"ok", "%zz"}});
}
