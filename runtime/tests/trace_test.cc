#include "select/trace.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "check.h"

using pitc::Trace;
using pitc::test::Contains;
using pitc::test::Thrown;

namespace {

// A file in a folder of its own, removed at the end.
class TemporaryFile {
 public:
  TemporaryFile() {
    char pattern[] = "/tmp/pitc_test_XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  ~TemporaryFile() {
    unlink(Path().c_str());
    rmdir(folder_.c_str());
  }
  std::string Path() const { return folder_ + "/trace"; }
  std::string Text() const {
    std::ifstream stream(Path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::string folder_;
};

// Dense and row offered: 2 rows of 3 elements, one of which lives.
pitc::Work SomeWork() {
  pitc::Work work{};
  work.rows = 2;
  work.k = 3;
  work.panels = work.k_blocks = work.live_columns = work.counts.elements = 1;
  work.row_block = 32;
  return work;
}

pitc::Choice SomeChoice() {
  pitc::Choice choice{pitc::Variant::kRow, {}};
  for (double& us : choice.predicted_us) us = std::numeric_limits<double>::infinity();
  choice.predicted_us[0] = 12.5;
  choice.predicted_us[1] = 0.25;
  return choice;
}

// The line of these decisions: its begin and end, and something of its middle.
bool IsLine(const std::string& line, const std::string& node, const std::string& measured) {
  const std::string begin = "{\"node\": \"" + node + "\", \"rows\": 2, \"k\": 3, ";
  const std::string end = "}, \"chosen\": \"row\", \"measured_us\": " + measured + "}\n";
  const bool good = line.compare(0, begin.size(), begin) == 0 && line.size() > end.size() &&
                    line.compare(line.size() - end.size(), end.size(), end) == 0 &&
                    line.find('\n') == line.size() - 1 &&
                    Contains(line, "\"candidates\": {\"dense\": {\"predicted_us\": 12.500, ") &&
                    Contains(line, "}, \"row\": {\"predicted_us\": 0.250, \"features\": [1.000, ");
  if (!good) printf("%s", line.c_str());
  return good;
}

void OneLinePerDecision() {
  const TemporaryFile file;
  CHECK(Trace::Open("") == nullptr);
  Trace::Open(file.Path())->Write("a", SomeWork(), SomeChoice(), 3.0625);
  const std::string first = file.Text();
  CHECK(IsLine(first, "a", "3.062"));
  Trace::Open(file.Path())->Write("b", SomeWork(), SomeChoice(), 1e30);  // appended
  CHECK(file.Text().compare(0, first.size(), first) == 0);
  CHECK(IsLine(file.Text().substr(first.size()), "b", "1000000000000000019884624838656.000"));
}

pitc::ChannelChoice SomeChannels() {
  return {{{"a", 3, 3, 64, 16}, {"\"b\xff", 64, 16, 0, 0}}, int64_t{1} << 62, 40, 50, false};
}

// Of one choice in one piece, so that those of others do not come between.
void OneLinePerConvolution() {
  const TemporaryFile file;
  const auto trace = Trace::Open(file.Path());
  pitc::ChannelChoice choice = SomeChannels();
  trace->Write(choice);
  const std::string begin =
      "{\"node\": \"a\", \"channels\": 3, \"live_channels\": 3, \"filters\": 64, "
      "\"live_filters\": 16, \"work\": 4611686018427387904, \"live_work\": 40, \"budget\": 50, "
      "\"chosen\": ";
  const std::string first = begin + "\"channels\"}\n";
  CHECK(file.Text() ==
        first +
            "{\"node\": \"\\\"b\\ufffd\", \"channels\": 64, \"live_channels\": 16, \"filters\": 0, "
            "\"live_filters\": 0, \"work\": 4611686018427387904, \"live_work\": 40, \"budget\": "
            "50, \"chosen\": \"channels\"}\n");
  const size_t before = file.Text().size();
  choice.dense = true;
  choice.convolutions.pop_back();
  trace->Write(choice);
  CHECK(file.Text().substr(before) == begin + "\"dense\"}\n");
}

void OneLinePerAttention() {
  const TemporaryFile file;
  Trace::Open(file.Path())->Write("a\"", pitc::LivePairs{int64_t{1} << 62, 5, 2, 40, 7});
  CHECK(file.Text() ==
        "{\"node\": \"a\\\"\", \"pairs\": 4611686018427387904, \"live_pairs\": 5, \"tiles\": 2, "
        "\"keys\": 40, \"listed_keys\": 7}\n");
}

void OneLinePerGroupedProduct() {
  const TemporaryFile file;
  Trace::Open(file.Path())->Write("a\"", pitc::GroupRows{8, 2, int64_t{1} << 62, 40, 7});
  CHECK(file.Text() ==
        "{\"node\": \"a\\\"\", \"groups\": 8, \"hit_groups\": 2, \"rows\": 4611686018427387904, "
        "\"most_rows\": 40, \"matrix_bytes\": 7}\n");
}

void OneLinePerRun() {
  const TemporaryFile file;
  const auto trace = Trace::Open(file.Path());
  trace->Write("a\"", {}, 1.5);
  trace->Write("b", {{{0.25}, 0.5}, {{1, 2}, 3.75}}, 8);
  CHECK(file.Text() ==
        "{\"node\": \"a\\\"\", \"run_us\": 1.500, \"loops\": []}\n"
        "{\"node\": \"b\", \"run_us\": 8.000, \"loops\": [{\"loop_us\": 0.500, \"tasks_us\": "
        "[0.250]}, {\"loop_us\": 3.750, \"tasks_us\": [1.000, 2.000]}]}\n");
}

void AnyNameIsJson() {
  const std::pair<std::string, std::string> names[] = {
      {"", ""},
      {"a\"b\\c/d", "a\\\"b\\\\c/d"},
      {std::string("\0\n\r\t\x1f\x7f", 6), "\\u0000\\u000a\\u000d\\u0009\\u001f\x7f"},
      {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
      // cut off, alone, too long, a surrogate, beyond the last character
      {"\xe2\x82", "\\ufffd\\ufffd"},
      {"\x80z\xffz\xc3", "\\ufffdz\\ufffdz\\ufffd"},
      {"\xc0\xaf", "\\ufffd\\ufffd"},
      {"\xe0\x9f\xbf", "\\ufffd\\ufffd\\ufffd"},
      {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},
      {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},
      {"\xf0\x8f\xbf\xbf", "\\ufffd\\ufffd\\ufffd\\ufffd"},
  };
  for (const auto& [name, escaped] : names) {
    const TemporaryFile file;
    Trace::Open(file.Path())->Write(name, SomeWork(), SomeChoice(), 0);
    CHECK(IsLine(file.Text(), escaped, "0.000"));
  }
}

void SessionsShareAFile() {
  const TemporaryFile file;
  const auto trace = Trace::Open(file.Path());
  CHECK(trace == Trace::Open(file.Path()));
  constexpr size_t kThreads = 8, kLines = 200;
  const auto node = [](size_t t) { return std::string(500 * t, static_cast<char>('a' + t)); };
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kLines; ++i)
        Trace::Open(file.Path())->Write(node(t), SomeWork(), SomeChoice(), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::ifstream stream(file.Path());
  std::map<std::string, size_t> lines;
  for (std::string line; std::getline(stream, line);) ++lines[line + "\n"];
  CHECK(lines.size() == kThreads);
  for (size_t t = 0; t < kThreads; ++t) {
    for (const auto& [line, count] : lines) {
      if (Contains(line, "\"" + node(t) + "\""))
        CHECK(IsLine(line, node(t), "1.000") && count == kLines);
    }
  }
}

void RefusesWhatItCannotWrite() {
  const TemporaryFile file;
  CHECK(Contains(Thrown([] { Trace::Open("/nowhere/trace"); }),
                 "cannot write the trace file '/nowhere/trace': No such file"));
  CHECK(Contains(Thrown([] { Trace::Open("/"); }),
                 "cannot write the trace file '/': Is a directory"));
  Trace::Open("/dev/full")->Write("a", SomeWork(), SomeChoice(), 0);  // lines are lost, no more
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"one line per decision", OneLinePerDecision},
                               {"one line per convolution", OneLinePerConvolution},
                               {"one line per attention", OneLinePerAttention},
                               {"one line per grouped product", OneLinePerGroupedProduct},
                               {"one line per run", OneLinePerRun},
                               {"any name is JSON", AnyNameIsJson},
                               {"sessions share a file", SessionsShareAFile},
                               {"refuses what it cannot write", RefusesWhatItCannotWrite}});
}
