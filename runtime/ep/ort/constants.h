// Constant inputs of nodes, in memory of our own: ONNX Runtime lets go of its copy. Large
// ones are in huge pages, where the system has them: rows of panels that lie far apart cost a page
// walk each in small ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "ort/tensor.h"

namespace pitc {

// A tensor that never changes.
class Constant {
 public:
  // Copies the elements of `source`, from the file if there is one: what ONNX Runtime has mapped
  // need not be touched. Throws std::bad_alloc.
  explicit Constant(const Tensor& source, const std::optional<FilePart>& file = std::nullopt);
  ~Constant();
  Constant(const Constant&) = delete;
  Constant& operator=(const Constant&) = delete;

  const Tensor& tensor() const { return tensor_; }
  bool IsCopyOf(const Tensor& other) const;

 private:
  Tensor tensor_;
  size_t bytes_;
  void* memory_ = nullptr;  // tensor_.data
};

// A constant that ONNX Runtime keeps, and passes in every run: it stays where the first run has
// found it.
class PassedConstant {
 public:
  const Tensor* Found() const { return found_.load(std::memory_order_acquire); }  // or null
  void Find(const Tensor& tensor);  // many threads may

 private:
  std::mutex mutex_;
  Tensor tensor_;
  std::atomic<const Tensor*> found_{nullptr};
};

// The constants of a session: nodes that read the same one share it. For one thread.
class Constants {
 public:
  // The one that was kept by this name, with its elements there; null: none is. In one graph a name
  // says which value it is.
  std::shared_ptr<const Constant> Find(const std::string& name, const FilePart& file) const;
  // `name`: of the value; it need not be the only one of that name. `file`: where its elements are
  // as well.
  std::shared_ptr<const Constant> Keep(const std::string& name, const Tensor& tensor,
                                       const std::optional<FilePart>& file = std::nullopt);

 private:
  struct Kept {
    std::weak_ptr<const Constant> constant;
    std::optional<FilePart> file;
  };
  std::multimap<std::string, Kept> kept_;
};

}  // namespace pitc
