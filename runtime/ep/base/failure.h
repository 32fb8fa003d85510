// A failure: one line of text that becomes an OrtStatus at the C boundary.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace pitc {

class Failure : public std::exception {
 public:
  explicit Failure(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// There is no memory left on a device.
class OutOfDeviceMemory : public Failure {
 public:
  using Failure::Failure;
};

// The parts, texts or integers, as one text. Only for error paths and set-up: it allocates.
template <class... Parts>
std::string Text(const Parts&... parts) {
  std::string out;
  auto add = [&out](const auto& part) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(part)>>) {
      out += std::to_string(part);
    } else {
      out += std::string_view(part);
    }
  };
  (add(parts), ...);
  return out;
}

template <class... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  throw Failure(Text(parts...));
}

// Foreign text made safe for a message: short, printable ASCII on one line, in single quotes.
inline std::string Quoted(std::string_view text, size_t longest = 60) {
  std::string out = "'";
  for (char c : text.substr(0, longest)) out += c >= ' ' && c <= '~' ? c : c == '\n' ? ' ' : '?';
  return out + (text.size() > longest ? "..'" : "'");
}

}  // namespace pitc
