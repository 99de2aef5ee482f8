// Captured updates. While one is captured, everything that computes is noted together with the memory it reads and
// writes; from then on the same steps run on the same memory, without Python or autograd. What they compute is what the
// operations computed one by one, to the bit.
//
// Native nodes note themselves (`compute`); operations of torch are noted by a dispatch mode (rlx/capturing.py).

#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace rlx {

using at::Tensor;

// Where the numbers of a tensor lie, as seen from its first one
struct Extent {
  int64_t bytes = 0;
  explicit Extent(const Tensor& t) {
    if (t.numel() == 0) return;
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    bytes = (last + 1) * static_cast<int64_t>(t.itemsize());
  }
};

inline char* address(const Tensor& t) { return static_cast<char*>(t.unsafeGetTensorImpl()->mutable_data()); }

inline bool is_same_shape(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Can its memory be copied to where a program reads it? Gradients do not go back into the arguments.
inline bool can_be_input(const Tensor& t) {
  return t.layout() == at::kStrided && t.device().is_cpu() && !t.is_neg() && !t.is_conj() && !t.requires_grad();
}

// What arguments are besides the tensors in them
struct Structure {
  std::vector<int64_t> layout;    // in their order: the size of a tuple, list or dict, or one of the two below
  std::vector<PyObject*> others;  // types of containers, keys of dicts, and what is no container
  static constexpr int64_t TENSOR = -1, OTHER = -2;

  bool operator==(const Structure& other) const {
    if (layout != other.layout || others.size() != other.others.size()) return false;
    for (size_t i = 0; i < others.size(); ++i) {
      if (others[i] == other.others[i]) continue;
      if (Py_TYPE(others[i]) != Py_TYPE(other.others[i])) return false;
      const int same = PyObject_RichCompareBool(others[i], other.others[i], Py_EQ);
      if (same < 0) PyErr_Clear();
      if (same != 1) return false;
    }
    return true;
  }
  void clear() {
    layout.clear();
    others.clear();
  }
};

// Where the numbers of a tensor lie now; null of what is no tensor
inline const void* place_of(PyObject* x) {
  if (!THPVariable_Check(x)) return nullptr;
  const Tensor& t = THPVariable_Unpack(x);
  if (!t.has_storage()) return nullptr;
  const auto* start = static_cast<const char*>(t.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  return start + t.storage_offset() * static_cast<int64_t>(t.itemsize());
}

// Calls f with what is in nested tuples, lists and dicts, until it says false
template <class F>
bool for_each_in(PyObject* x, const F& f, int depth = 0) {
  if (depth < 4 && (PyTuple_Check(x) || PyList_Check(x))) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(x);
    for (Py_ssize_t i = 0; i < n; ++i)
      if (!for_each_in(PySequence_Fast_GET_ITEM(x, i), f, depth + 1)) return false;
    return true;
  }
  if (depth < 4 && PyDict_Check(x)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(x, &at, &key, &value);)
      if (!for_each_in(value, f, depth + 1)) return false;
    return true;
  }
  return f(x);
}

// An attribute that the captured method read
struct Attribute {
  PyObject *places, *name;  // a dict, null for that of the learner, and a key
  std::vector<std::pair<PyObject*, const void*>> found;  // what was there, and where its numbers lay
  bool absent = false;                                    // nothing was: it is an attribute of the class

  bool is_as_it_was(PyObject* own) const {
    PyObject* now = PyDict_GetItemWithError(places ? places : own, name);
    if (!now || absent) return PyErr_Clear(), !now && absent;
    size_t i = 0;
    const auto same = [&](PyObject* x) {
      if (i == found.size()) return false;
      const auto& [before, place] = found[i++];
      if (x == before) return place_of(x) == place;
      const bool plain = PyFloat_CheckExact(x) || PyLong_CheckExact(x) || PyUnicode_CheckExact(x);
      return plain && Py_TYPE(x) == Py_TYPE(before) && PyObject_RichCompareBool(x, before, Py_EQ) == 1;
    };
    return for_each_in(now, same) && i == found.size();
  }
};

// How operations are carried out at the moment
struct Mode {
  bool gradients = at::GradMode::is_enabled(), autocast = at::autocast::is_autocast_enabled(at::kCPU);
  bool operator==(const Mode&) const = default;
};

struct Program {
  std::vector<std::function<void()>> steps;
  std::vector<std::pair<c10::Storage, const void*>> memory;  // that the steps use, and where it lies
  std::vector<Tensor> written;                               // by the steps
  std::vector<Attribute> attributes;
  std::vector<PyObject*> objects;  // that all of this refers to
  std::vector<Tensor> inputs, outputs;
  Mode mode;
  Structure structure;         // of the arguments
  PyObject* result = nullptr;  // what the captured method returned, of `outputs`
  std::vector<bool> dense;      // outputs without gaps
  struct Block {
    int64_t first = 0;  // the input that lies first in it
    int64_t bytes = 0;
    char* to = nullptr;
  };
  std::vector<Block> blocks;         // of inputs that lie in one piece of memory
  std::vector<int64_t> block_of;     // of each input
  std::vector<int64_t> place_in_it;  // in bytes

  ~Program() {
    for (PyObject* object : objects) Py_DECREF(object);
  }

  void keep(const Tensor& t) {
    if (t.defined() && t.has_storage()) memory.emplace_back(t.storage(), t.storage().data());
  }
  void keep(const std::vector<Tensor>& tensors) {
    for (const auto& t : tensors) keep(t);
  }
  void keep(PyObject* object) { objects.push_back(Py_NewRef(object)); }

  // `reads`: pairs of a dict, or None for that of the learner, and a key
  void watch(PyObject* reads, PyObject* own) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(reads); ++i) {
      PyObject *pair = PyList_GET_ITEM(reads, i), *places = PyTuple_GET_ITEM(pair, 0), *name = PyTuple_GET_ITEM(pair, 1);
      Attribute read{places == Py_None ? nullptr : places, name, {}};
      PyObject* now = PyDict_GetItemWithError(read.places ? places : own, name);
      read.absent = !now;
      keep(places);
      keep(name);
      if (now) for_each_in(now, [&](PyObject* x) {
        keep(x);
        read.found.emplace_back(x, place_of(x));
        return true;
      });
      attributes.push_back(std::move(read));
    }
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto same = [](const auto& a, const auto& b) { return a.second == b.second; };
    std::sort(memory.begin(), memory.end(), less);
    memory.erase(std::unique(memory.begin(), memory.end(), same), memory.end());
  }

  // Is everything that it works on where it was?
  bool still_holds(PyObject* own) const {
    if (!(Mode() == mode)) return false;
    for (const auto& [storage, place] : memory)
      if (storage.data() != place) return false;
    for (const auto& attribute : attributes)
      if (!attribute.is_as_it_was(own)) return false;
    return true;
  }

  // Memory of its own for the inputs, which lies as theirs does: in the same order, with the same gaps
  void take_inputs(const std::vector<Tensor>& given) {
    std::vector<const void*> storages;
    std::vector<std::pair<char*, char*>> range;  // of each block
    std::vector<int64_t> wanted;
    for (const Tensor& t : given) {
      const void* storage = t.storage().unsafeGetStorageImpl();
      char *begin = address(t), *end = begin + Extent(t).bytes;
      const auto at = std::find(storages.begin(), storages.end(), storage) - storages.begin();
      if (at == static_cast<int64_t>(storages.size())) {
        storages.push_back(storage);
        range.emplace_back(begin, end);
        wanted.push_back(0);
      }
      range[at] = {std::min(range[at].first, begin), std::max(range[at].second, end)};
      wanted[at] += t.numel() * static_cast<int64_t>(t.itemsize());
      block_of.push_back(at);
    }
    for (size_t i = 0; i < given.size(); ++i) {  // far apart, or of another type: each for itself
      const int64_t b = block_of[i], bytes = Extent(given[i]).bytes;
      const bool aligned = (address(given[i]) - range[b].first) % static_cast<int64_t>(given[i].itemsize()) == 0;
      if (aligned && range[b].second - range[b].first <= 2 * wanted[b]) continue;
      block_of[i] = static_cast<int64_t>(range.size());
      range.emplace_back(address(given[i]), address(given[i]) + bytes);
      wanted.push_back(bytes);
    }
    blocks.resize(range.size());
    std::vector<Tensor> rooms(range.size());
    for (size_t i = 0; i < given.size(); ++i) {
      const Tensor& t = given[i];
      Block& block = blocks[block_of[i]];
      Tensor& room = rooms[block_of[i]];
      if (!room.defined()) {
        block.bytes = range[block_of[i]].second - range[block_of[i]].first;
        room = at::empty({block.bytes}, at::TensorOptions(at::kByte));
        block.to = address(room);
      }
      const int64_t place = address(t) - range[block_of[i]].first;
      if (place == 0) block.first = static_cast<int64_t>(i);
      place_in_it.push_back(place);
      Tensor own = at::empty({0}, t.options().requires_grad(false));
      own.set_(room.storage(), place / static_cast<int64_t>(t.itemsize()), t.sizes(), t.strides());
      inputs.push_back(own);
    }
    copy_in(given);
  }

  // Do these lie as the first ones did?
  bool fits(const std::vector<Tensor>& given) const {
    if (given.size() != inputs.size()) return false;
    for (size_t i = 0; i < given.size(); ++i) {
      const Block& block = blocks[block_of[i]];
      const bool is_plain = given[i].key_set() == inputs[i].key_set() && !given[i].requires_grad();
      if (!(is_plain || can_be_input(given[i])) || !is_same_shape(given[i], inputs[i]) ||
          address(given[i]) != address(given[block.first]) + place_in_it[i])
        return false;
    }
    return true;
  }

  void copy_in(const std::vector<Tensor>& given) {
    for (const Block& block : blocks)
      if (block.to) std::memcpy(block.to, address(given[block.first]), block.bytes);
  }

  void run() {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (const auto& step : steps) step();
    for (const auto& t : written) t.unsafeGetTensorImpl()->bump_version();
  }

  Tensor output(size_t i) const {
    const Tensor& t = outputs[i];
    if (!dense[i]) return t.clone();
    Tensor fresh = at::empty_strided(t.sizes(), t.strides(), t.options());
    std::memcpy(address(fresh), address(t), t.nbytes());
    return fresh;
  }
};

inline thread_local Program* capturing = nullptr;

// Does it now and, where an update is captured, at each of its runs; `used` is the memory that it needs
template <class F, class... Used>
void compute(F f, const Used&... used) {
  f();
  if (!capturing) return;
  (capturing->keep(used), ...);
  capturing->steps.emplace_back(std::move(f));
}

// -- operations of torch

inline Tensor without_history(const Tensor& t) {
  const at::NoGradGuard guard;
  return t.defined() ? t.detach() : t;
}

// A Python argument as its schema wants it; nothing where it is of a kind that is not known here
inline std::optional<c10::IValue> to_ivalue(PyObject* x, const c10::TypePtr& type) {
  using c10::IValue;
  using c10::TypeKind;
  if (const auto optional = type->cast<c10::OptionalType>()) {
    if (x == Py_None) return IValue();
    return to_ivalue(x, optional->getElementType());
  }
  switch (type->kind()) {
    case TypeKind::TensorType: {
      if (x == Py_None) return IValue(Tensor());
      if (THPVariable_Check(x)) return IValue(without_history(THPVariable_Unpack(x)));
      Tensor number;  // in place of a tensor
      if (PyBool_Check(x)) number = at::scalar_tensor(x == Py_True, at::kBool);
      else if (PyLong_Check(x)) number = at::scalar_tensor(PyLong_AsLongLong(x), at::kLong);
      else if (PyFloat_Check(x)) number = at::scalar_tensor(PyFloat_AsDouble(x), at::kDouble);
      else return std::nullopt;
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      return IValue(number);
    }
    case TypeKind::NumberType:
      if (PyBool_Check(x)) return IValue(x == Py_True);
      if (PyLong_Check(x)) return IValue(static_cast<int64_t>(PyLong_AsLongLong(x)));
      if (PyFloat_Check(x)) return IValue(PyFloat_AsDouble(x));
      return std::nullopt;
    case TypeKind::FloatType:
      if (PyFloat_Check(x) || PyLong_Check(x)) return IValue(PyFloat_AsDouble(x));
      return std::nullopt;
    case TypeKind::BoolType:
      if (PyBool_Check(x)) return IValue(x == Py_True);
      return std::nullopt;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
      if (PyLong_Check(x)) return IValue(static_cast<int64_t>(PyLong_AsLongLong(x)));
      if (THPDtype_Check(x)) return IValue(static_cast<int64_t>(reinterpret_cast<THPDtype*>(x)->scalar_type));
      if (THPLayout_Check(x)) return IValue(static_cast<int64_t>(reinterpret_cast<THPLayout*>(x)->layout));
      if (THPMemoryFormat_Check(x))
        return IValue(static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(x)->memory_format));
      return std::nullopt;
    case TypeKind::DeviceObjType:
      if (THPDevice_Check(x)) return IValue(reinterpret_cast<THPDevice*>(x)->device);
      return std::nullopt;
    case TypeKind::StringType:
      if (PyUnicode_Check(x)) return IValue(std::string(PyUnicode_AsUTF8(x)));
      return std::nullopt;
    case TypeKind::ListType: {
      if (!PyList_Check(x) && !PyTuple_Check(x)) return std::nullopt;
      const auto element = type->castRaw<c10::ListType>()->getElementType();
      const bool of_numbers = element->kind() == TypeKind::SymIntType;
      c10::impl::GenericList list(of_numbers ? c10::TypePtr(c10::IntType::get()) : element);
      const Py_ssize_t n = PySequence_Fast_GET_SIZE(x);
      for (Py_ssize_t i = 0; i < n; ++i) {
        auto item = to_ivalue(PySequence_Fast_GET_ITEM(x, i), element);
        if (!item) return std::nullopt;
        list.push_back(std::move(*item));
      }
      return IValue(std::move(list));
    }
    default:
      return std::nullopt;
  }
}

// The operations of a few numbers that cost more to call than to compute, where there is one way to round them; empty
// where it is another operation, or the tensors are not plain floats
inline std::function<void()> quick(const std::string& name, const std::vector<c10::IValue>& stack,
                                   const std::vector<Tensor>& made) {
  const auto plain = [](const Tensor& t) {
    return t.defined() && t.scalar_type() == at::kFloat && t.is_contiguous() && t.device().is_cpu();
  };
  if (made.size() != 1 || stack.empty() || !stack[0].isTensor() || !plain(made[0]) || !plain(stack[0].toTensor()))
    return {};
  const Tensor& x = stack[0].toTensor();
  const int64_t n = made[0].numel();
  const auto* from = reinterpret_cast<const float*>(address(x));
  auto* to = reinterpret_cast<float*>(address(made[0]));
  if (name == "aten::ones_like") return [=] { std::fill_n(to, n, 1.f); };
  if (x.sizes() == made[0].sizes() && (name == "aten::neg" || name == "aten::abs")) {
    if (name == "aten::neg") return [=, x = x, y = made[0]] { for (int64_t i = 0; i < n; ++i) to[i] = -from[i]; };
    return [=, x = x, y = made[0]] { for (int64_t i = 0; i < n; ++i) to[i] = std::fabs(from[i]); };
  }
  if ((name == "aten::amax" || name == "aten::amin") && x.dim() > 0 && stack[1].isIntList() && stack[1].toIntVector().size() == 1) {
    int64_t dim = stack[1].toIntVector()[0];
    if (dim < 0) dim += x.dim();
    int64_t before = 1, after = 1;
    for (int64_t d = 0; d < x.dim(); ++d) (d < dim ? before : after) *= d == dim ? 1 : x.size(d);
    const int64_t count = x.size(dim);
    const bool most = name == "aten::amax";
    return [=, x = x, y = made[0]] {
      for (int64_t i = 0; i < before; ++i)
        for (int64_t j = 0; j < after; ++j) {
          const float* at = from + i * count * after + j;
          float best = at[0];
          for (int64_t k = 1; k < count; ++k) {
            const float next = at[k * after];
            if ((most ? next > best : next < best) || std::isnan(next)) best = next;
          }
          to[i * after + j] = best;
        }
    };
  }
  const bool times = name == "aten::mul", minus = name == "aten::sub";
  if ((times || minus || name == "aten::add") && stack[1].isTensor() && plain(stack[1].toTensor())) {
    const Tensor& y = stack[1].toTensor();
    if (!times && !(stack[2].isScalar() && stack[2].toScalar().toDouble() == 1.0)) return {};
    const auto fits = [&](const Tensor& t) { return t.numel() == 1 || t.sizes() == made[0].sizes(); };
    if (!fits(x) || !fits(y)) return {};
    const auto* other = reinterpret_cast<const float*>(address(y));
    const int64_t a = x.numel() == 1 ? 0 : 1, b = y.numel() == 1 ? 0 : 1;
    if (times) return [=, x = x, y = y, z = made[0]] { for (int64_t i = 0; i < n; ++i) to[i] = from[i * a] * other[i * b]; };
    if (minus) return [=, x = x, y = y, z = made[0]] { for (int64_t i = 0; i < n; ++i) to[i] = from[i * a] - other[i * b]; };
    return [=, x = x, y = y, z = made[0]] { for (int64_t i = 0; i < n; ++i) to[i] = from[i * a] + other[i * b]; };
  }
  return {};
}

// Notes a call of a torch operation, and what it gave: False where it cannot be repeated from here
inline bool note_operation(const char* name, const char* overload, PyObject* args, PyObject* kwargs,
                           const std::vector<Tensor>& made) {
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return false;
  const auto& schema = handle->schema();
  std::vector<c10::IValue> stack;
  const auto& expected = schema.arguments();
  for (size_t i = 0; i < expected.size(); ++i) {
    PyObject* given = static_cast<Py_ssize_t>(i) < PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, i)
                      : kwargs && PyDict_Check(kwargs) ? PyDict_GetItemString(kwargs, expected[i].name().c_str())
                                                       : nullptr;
    std::optional<c10::IValue> value;
    if (given) value = to_ivalue(given, expected[i].type());
    else if (expected[i].default_value()) value = *expected[i].default_value();
    if (!value) return false;
    stack.push_back(std::move(*value));
  }
  if (schema.is_mutable()) {
    for (const auto& result : schema.returns())
      if (!result.alias_info()) return false;  // it makes a tensor as well, whose memory a run would not write
    for (size_t i = 0; i < expected.size(); ++i)
      if (const auto* alias = expected[i].alias_info(); alias && alias->isWrite()) {
        if (stack[i].isTensor()) capturing->written.push_back(stack[i].toTensor());
        if (stack[i].isTensorList())
          for (const auto& t : stack[i].toTensorVector()) capturing->written.push_back(t);
      }
    capturing->steps.emplace_back([handle = *handle, stack] {
      auto values = stack;
      handle.callBoxed(values);
    });
    return true;
  }
  std::vector<Tensor> to;
  for (const auto& t : made) to.push_back(without_history(t));
  if (auto step = quick(name, stack, to)) {
    capturing->steps.push_back(std::move(step));
    return true;
  }
  capturing->steps.emplace_back([handle = *handle, stack, to] {
    auto values = stack;
    handle.callBoxed(values);
    const bool listed = values.size() == 1 && values[0].isTensorList();
    const auto list = listed ? values[0].toTensorVector() : std::vector<Tensor>();
    for (size_t i = 0; i < to.size(); ++i) {
      const Tensor& from = listed ? list[i] : values[i].toTensor();
      if (is_same_shape(from, to[i]) && from.is_non_overlapping_and_dense())
        std::memcpy(address(to[i]), address(from), from.nbytes());
      else {
        TORCH_CHECK(from.sizes() == to[i].sizes(), handle.schema().name(), " gave another shape than when it was captured");
        to[i].copy_(from);
      }
    }
  });
  return true;
}

}  // namespace rlx
