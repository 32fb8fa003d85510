#include "select/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "base/failure.h"

namespace pitc {
namespace {

// Bytes of the UTF-8 character at text[at], or 0 where there is none.
size_t CharacterBytes(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](size_t i, unsigned least = 0x80, unsigned most = 0xbf) {
    return byte(i) >= least && byte(i) <= most;
  };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return follows(at + 1) ? 2 : 0;
  const unsigned least = lead == 0xe0   ? 0xa0
                         : lead == 0xf0 ? 0x90
                                        : 0x80;                            // no longer than need be
  const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;  // no surrogates
  if (lead < 0xe0 || lead > 0xf4 || !follows(at + 1, least, most) || !follows(at + 2)) return 0;
  return lead < 0xf0 ? 3 : follows(at + 3) ? 4 : 0;
}

// As the inside of a JSON string; bytes that are no text become U+FFFD.
std::string Escaped(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text, at);
    const char c = text[at];
    if (bytes == 0) {
      out += "\\ufffd";
    } else if (bytes == 1 && static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += text.substr(at, bytes);
    }
    at += std::max<size_t>(bytes, 1);
  }
  return out;
}

// Whatever the host's locale is.
std::string Number(double x) {
  char text[400];
  const auto end = std::to_chars(text, text + sizeof text, x, std::chars_format::fixed, 3).ptr;
  return std::string(text, end);
}

}  // namespace

std::shared_ptr<Trace> Trace::Open(const std::string& path) {
  if (path.empty()) return nullptr;
  static auto* mutex = new std::mutex;  // never destroyed: sessions may end after main()
  static auto* open_traces = new std::map<std::string, std::weak_ptr<Trace>>;
  std::lock_guard<std::mutex> lock(*mutex);
  std::weak_ptr<Trace>& entry = (*open_traces)[path];
  if (auto trace = entry.lock()) return trace;
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) Fail("pitc: cannot write the trace file '", path, "': ", strerror(errno));
  std::shared_ptr<Trace> trace(new Trace(file));
  entry = trace;
  return trace;
}

Trace::~Trace() { close(file_); }

void Trace::Write(const std::string& node, const Work& work, const Choice& choice,
                  double measured_us, double cpu_us) {
  const MicroTileCounts& c = work.counts;
  std::string line =
      Text("{\"node\": \"", Escaped(node), "\", \"rows\": ", work.rows, ", \"k\": ", work.k,
           ", \"panels\": ", work.panels, ", \"row_block\": ", work.row_block,
           ", \"k_blocks\": ", work.k_blocks, ", \"threads\": ", work.threads,
           ", \"scanned\": ", work.scanned ? "true" : "false",
           ", \"counts\": {\"elements\": ", c.elements, ", \"columns\": ", work.live_columns,
           ", \"runs\": ", work.live_runs[0]);
  for (const VariantRecord& v : kTable) {
    if (v.cut == Cut::kTile) line += Text(", \"", v.name, "\": ", c.strips[v.place]);
    if (v.cut != Cut::kBlock) continue;
    line += Text(", \"", v.name, "\": ", c.segments[v.place], ", \"columns", v.size,
                 "\": ", work.live_pieces[v.place], ", \"runs", v.size,
                 "\": ", work.live_runs[v.place + 1]);
  }
  line += "}, \"candidates\": {";
  const char* comma = "";
  for (int v = 0; v < kVariants; ++v) {
    if (!std::isfinite(choice.predicted_us[v])) continue;
    const auto variant = static_cast<Variant>(v);
    line += Text(comma, "\"", Name(variant),
                 "\": {\"predicted_us\": ", Number(choice.predicted_us[v]), ", \"features\": [");
    const Features features = FeaturesOf(variant, work);
    for (int f = 0; f < kFeatures; ++f) line += (f ? ", " : "") + Number(features.amount[f]);
    line += "]}";
    comma = ", ";
  }
  line +=
      Text("}, \"chosen\": \"", Name(choice.variant), "\", \"measured_us\": ", Number(measured_us));
  if (cpu_us >= 0) line += ", \"cpu_us\": " + Number(cpu_us);
  line += "}\n";
  Append(line);
}

void Trace::Write(const ChannelChoice& choice) {
  std::string lines;
  for (const LiveChannels& c : choice.convolutions) {
    lines += Text("{\"node\": \"", Escaped(c.node), "\", \"channels\": ", c.channels,
                  ", \"live_channels\": ", c.live_channels, ", \"filters\": ", c.filters,
                  ", \"live_filters\": ", c.live_filters, ", \"work\": ", choice.work,
                  ", \"live_work\": ", choice.live_work, ", \"budget\": ", choice.budget,
                  ", \"chosen\": \"", choice.dense ? Name(Variant::kDense) : "channels", "\"}\n");
  }
  Append(lines);
}

void Trace::Write(const std::string& node, const LivePairs& pairs) {
  Append(Text("{\"node\": \"", Escaped(node), "\", \"pairs\": ", pairs.pairs,
              ", \"live_pairs\": ", pairs.live_pairs, ", \"tiles\": ", pairs.tiles,
              ", \"keys\": ", pairs.keys, ", \"listed_keys\": ", pairs.listed_keys, "}\n"));
}

void Trace::Write(const std::string& node, const GroupRows& groups) {
  Append(Text("{\"node\": \"", Escaped(node), "\", \"groups\": ", groups.groups,
              ", \"hit_groups\": ", groups.hit_groups, ", \"rows\": ", groups.rows,
              ", \"most_rows\": ", groups.most_rows, ", \"matrix_bytes\": ", groups.matrix_bytes,
              "}\n"));
}

void Trace::Write(const std::string& node, const std::vector<Loop>& loops, double run_us) {
  std::string line =
      Text("{\"node\": \"", Escaped(node), "\", \"run_us\": ", Number(run_us), ", \"loops\": [");
  for (size_t l = 0; l < loops.size(); ++l) {
    line += Text(l ? ", " : "", "{\"loop_us\": ", Number(loops[l].loop_us), ", \"tasks_us\": [");
    for (size_t i = 0; i < loops[l].tasks_us.size(); ++i)
      line += (i ? ", " : "") + Number(loops[l].tasks_us[i]);
    line += "]}";
  }
  Append(line + "]}\n");
}

void Trace::Write(const std::string& node, const Transfers& transfers) {
  Append(Text("{\"node\": \"", Escaped(node), "\", \"uploads\": ", transfers.uploads,
              ", \"uploaded_bytes\": ", transfers.uploaded_bytes, ", \"downloads\": ",
              transfers.downloads, ", \"downloaded_bytes\": ", transfers.downloaded_bytes, "}\n"));
}

void Trace::Write(const std::string& node, const DeviceChoice& choice) {
  std::string line = Text("{\"node\": \"", Escaped(node), "\", \"rows\": ", choice.rows,
                          ", \"k\": ", choice.k, ", \"n\": ", choice.n, ", \"counts\": {");
  const char* comma = "";
  for (const auto& [name, count] : choice.counts) {
    line += Text(comma, "\"", name, "\": ", count);
    comma = ", ";
  }
  line += "}, \"candidates\": {";
  comma = "";
  for (const auto& [name, us] : choice.predicted_us) {
    line += Text(comma, "\"", name, "\": {\"predicted_us\": ", Number(us), "}");
    comma = ", ";
  }
  Append(Text(line, "}, \"chosen\": \"", choice.chosen, "\"}\n"));
}

// One call for lines of one decision: those of several threads and processes do not mix. A full
// disk costs lines, not results.
void Trace::Append(const std::string& lines) {
  if (write(file_, lines.data(), lines.size()) < 0) return;
}

}  // namespace pitc
