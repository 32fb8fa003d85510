// A fuzzer for compilers without libFuzzer, with its entry point and the options that both need:
// it changes the seeds at random. Input i depends on the seeds, -seed and i alone, so that a
// failure is reproduced by what is printed: -seed=S -first=I -runs=1.
//
// usage: NAME_fuzz [-runs=N] [-max_total_time=SECONDS] [-seed=S] [-first=I] SEED_FOLDER
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using pitc::test::Random;

std::vector<std::string> seeds;
long long option_seed = 1, option_first = 0, option_runs = 1000000, option_max_total_time = 0;
long long current = 0;
std::string& input = *new std::string;  // at the very end, too

size_t Below(Random& random, size_t limit) {
  return static_cast<size_t>(random.Below(static_cast<int64_t>(limit)));
}

void Change(Random& random, std::string* text) {
  static const std::string kDear =  // the highest prices
      "1125899906842624,0,1125899906842624,1125899906842624,1125899906842624,1125899906842624,"
      "1125899906842624,0,1125899906842624,1125899906842624,1125899906842624,1125899906842624";
  static const std::string kNumbers[] = {"",
                                         "0",
                                         "1",
                                         "-1",
                                         "2",
                                         "8",
                                         "255",
                                         "65536",
                                         "16777216",
                                         "2147483647",
                                         "4294967296",
                                         "9223372036854775807",
                                         "18446744073709551616",
                                         "0x1p1023",
                                         "nan",
                                         "0,0,0,0,0,0,0,0,0,0,0,0",
                                         kDear};
  const size_t at = Below(random, text->size() + 1);
  const size_t part = Below(random, std::min<size_t>(text->size() - at, 40) + 1);
  switch (random.Below(9)) {
    case 0:
      if (at < text->size()) (*text)[at] = static_cast<char>(random.Below(256));
      break;
    case 1:
      if (at < text->size()) (*text)[at] ^= static_cast<char>(1 << random.Below(8));
      break;
    case 2:
      text->insert(at, 1, static_cast<char>(random.Below(256)));
      break;
    case 3:
      text->erase(at, part);
      break;
    case 4:
      text->insert(Below(random, text->size() + 1), text->substr(at, part));
      break;
    case 5: {  // a value becomes an edge case
      const size_t from = text->find('=', at), to = text->find('\n', at);
      if (from < to && to != text->npos)
        text->replace(from + 1, to - from - 1, kNumbers[Below(random, std::size(kNumbers))]);
      break;
    }
    case 6: {  // a line of another seed
      const std::string& other = seeds[Below(random, seeds.size())];
      const size_t from = other.rfind('\n', Below(random, other.size() + 1));
      const size_t start = from == other.npos ? 0 : from + 1;
      text->insert(text->find('\n', at) == text->npos ? at : text->find('\n', at) + 1,
                   other.substr(start, other.find('\n', start) - start + 1));
      break;
    }
    case 7:
      text->resize(at);
      break;
    default: {  // bytes after a zero choose what a plan is run on
      text->push_back('\0');
      for (int64_t i = random.Below(16); i >= 0; --i)
        text->push_back(static_cast<char>(random.Below(256)));
    }
  }
}

std::string Input(long long number) {
  Random random(static_cast<uint64_t>(option_seed) * 0x9E3779B97F4A7C15u +
                static_cast<uint64_t>(number));
  for (int i = 0; i < 4; ++i) random.Next();
  std::string text = seeds[Below(random, seeds.size())];
  for (int64_t changes = random.Below(5); changes > 0; --changes) Change(random, &text);
  return text;
}

void Died() {
  fprintf(stderr, "\nthis was: -seed=%lld -first=%lld -runs=1; the input:\n", option_seed, current);
  for (char c : input)
    fprintf(stderr, c == '\n' || (c >= ' ' && c <= '~') ? "%c" : "\\x%02x",
            static_cast<unsigned char>(c));
  fprintf(stderr, "\n");
}

bool ReadOption(const char* argument, const char* name, long long* value) {
  const size_t length = strlen(name);
  if (strncmp(argument, name, length) != 0) return false;
  *value = atoll(argument + length);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (ReadOption(argv[i], "-runs=", &option_runs) ||
        ReadOption(argv[i], "-max_total_time=", &option_max_total_time) ||
        ReadOption(argv[i], "-seed=", &option_seed) ||
        ReadOption(argv[i], "-first=", &option_first)) {
      continue;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      std::ifstream stream(file, std::ios::binary);
      seeds.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    }
  }
  if (seeds.empty()) {
    fprintf(stderr, "usage: %s [-runs=N] [-max_total_time=SECONDS] [-seed=S] [-first=I] FOLDER\n",
            argv[0]);
    return 2;
  }
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(Died);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (current = option_first; current < option_first + option_runs; ++current) {
    if (option_max_total_time && seconds() > static_cast<double>(option_max_total_time)) break;
    input = Input(current);
    // A copy of exactly its size: a sanitizer sees any step beyond.
    const std::vector<uint8_t> exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
  printf("%lld inputs in %.1f s, seed %lld\n", current - option_first, seconds(), option_seed);
  return 0;
}
