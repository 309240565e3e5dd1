// Who computes a gemm, a convolution, attention, and how a library is called. The first case of each is
// chosen, every other lacks one thing.
#include "compiler/library/choice.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/library/attention.h"
#include "compiler/library/convolution.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/library_nodes.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

void MoveTo(Maker& m, v1::DeviceType device) {
  for (TensorType& type : m.graph.values) type.device = device;
}

TEST(Choose, AnotherLibraryForAGemm) {
  struct Case {
    const char* what;
    int64_t rows = 64;
    bool onednn = true, unused = true, scaled = false, transposed = false;
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CPU;
  };
  for (const Case& c :
       {Case{"all"}, Case{"work", 2}, Case{"oneDNN", 64, false}, Case{"MKL of 256 bits", 64, true, false},
        Case{"alpha", 64, true, true, true}, Case{"rows in order", 64, true, true, false, true},
        Case{"F32", 64, true, true, false, false, v1::BF16},
        Case{"a CPU", 64, true, true, false, false, v1::F32, v1::CUDA}}) {
    Maker m;
    const ValueId a = m.Input({c.rows, 512}, c.dtype), b = m.Input({512, 512}, c.dtype),
                  bias = m.Input({512}, c.dtype);
    if (c.transposed) m.graph.values[a].strides = {m.graph.exprs.Const(1), m.graph.exprs.Const(c.rows)};
    GraphBuilder::Args args = GemmArguments({.a = a, .b = b, .c = bias});
    if (c.scaled) args.emplace_back("alpha", FloatArg{2});
    m.Node("kiln.gemm.default", args, m.Type({c.rows, 512}, c.dtype));
    MoveTo(m, c.device);
    Machine machine;
    machine.cpu_libraries.onednn = c.onednn;
    machine.cpu_libraries.mkl_leaves_avx512_unused = c.unused;
    const Implementation chosen = Choose(m.graph, *GemmOf(m.graph, m.graph.nodes[0]), machine);
    EXPECT_EQ(chosen, std::string(c.what) == "all" ? Implementation::kOnednn : Implementation::kLibrary)
        << c.what;
  }
}

TEST(Choose, TheLibrarysActivationOfAGemm) {
  struct Case {
    const char* what;
    Gemm::Activation activation = Gemm::Activation::kGeluTanh;
    bool tf32 = true;
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CUDA;
    bool row = true, activated = false;
  };
  constexpr Gemm::Activation kRelu = Gemm::Activation::kRelu, kGelu = Gemm::Activation::kGeluTanh;
  for (const Case& c : {Case{"all"}, Case{"all", kRelu, false}, Case{"all", kGelu, false, v1::BF16},
                        Case{"rounded factors", kGelu, false}, Case{"no F64", kRelu, true, v1::F64},
                        Case{"a GPU", kRelu, true, v1::F32, v1::CPU},
                        Case{"a plain gemm", kRelu, true, v1::F32, v1::CUDA, true, true},
                        Case{"a bias", kRelu, true, v1::F32, v1::CUDA, false}}) {
    Maker m;
    const ValueId a = m.Input({8, 5}, c.dtype), b = m.Input({5, 4}, c.dtype),
                  row = m.Input(c.row ? std::vector<int64_t>{4} : std::vector<int64_t>{8, 4}, c.dtype);
    m.Node("kiln.gemm.default", GemmArguments({.a = a, .b = b, .c = row}), m.Type({8, 4}, c.dtype));
    if (c.activated) SetActivation(m.graph.nodes[0], kRelu);
    MoveTo(m, c.device);
    const Gemm gemm = *GemmOf(m.graph, m.graph.nodes[0]);
    Machine machine;
    machine.gpu_libraries.tf32 = c.tf32;
    EXPECT_EQ(Activates(m.graph, gemm, c.activation, machine), std::string(c.what) == "all") << c.what;
  }
}

TEST(Choose, AKernelForAGemmOfFewRows) {
  struct Case {
    const char* what;
    int64_t rows = 16, columns = 64, summed = 256;
    v1::DType dtype = v1::BF16;
    bool tf32 = true;
    int64_t clusters = 8;
    v1::DeviceType device = v1::CUDA;
    int64_t cache_bytes = int64_t{50} << 20;
  };
  for (const Case& c :
       {Case{"all"}, Case{"all", 1}, Case{"all", 8, 64, 256, v1::BF16, true, 8, v1::CUDA, 1},
        Case{"a cache for more than 8 rows", 9, 64, 256, v1::BF16, true, 8, v1::CUDA, 1},
        Case{"all", 16, 64, 256, v1::F16}, Case{"all", 16, 64, 256, v1::F32, false}, Case{"few rows", 17},
        Case{"whole tiles", 16, 72}, Case{"sums of 16 bytes", 16, 64, 252},
        Case{"no F64", 16, 64, 256, v1::F64}, Case{"F32 that is not rounded", 16, 64, 256, v1::F32},
        Case{"clusters", 16, 64, 256, v1::BF16, true, 1},
        Case{"a GPU", 16, 64, 256, v1::BF16, true, 8, v1::CPU}}) {
    Maker m;
    const ValueId a = m.Input({c.rows, c.summed}, c.dtype), b = m.Input({c.summed, c.columns}, c.dtype);
    m.graph.values[b].strides = {m.graph.exprs.Const(1), m.graph.exprs.Const(c.summed)};
    m.Node("kiln.gemm.default", GemmArguments({.a = a, .b = b}), m.Type({c.rows, c.columns}, c.dtype));
    MoveTo(m, c.device);
    Machine machine;
    machine.gpu.cluster_blocks_max = c.clusters;
    machine.gpu.second_level_bytes = c.cache_bytes;
    machine.gpu_libraries.tf32 = c.tf32;
    const Gemm gemm = *GemmOf(m.graph, m.graph.nodes[0]);
    const bool all = std::string(c.what) == "all";
    EXPECT_EQ(Choose(m.graph, gemm, machine), all ? Implementation::kKernel : Implementation::kLibrary)
        << c.what;
    // What is a kernel does the activation itself.
    if (all) {
      EXPECT_FALSE(Activates(m.graph, gemm, Gemm::Activation::kRelu, machine));
    }
  }
}

TEST(Choose, PaddedRowsForAGemm) {
  struct Case {
    const char* what;
    int64_t rows = 1024, columns = 2049;
    v1::DType dtype = v1::BF16;
    v1::DeviceType device = v1::CUDA;
    bool row = true;
  };
  for (const Case& c : {Case{"all"}, Case{"work", 256}, Case{"bytes that are missing", 1024, 2048},
                        Case{"16 bits", 1024, 2049, v1::F32}, Case{"a GPU", 1024, 2049, v1::BF16, v1::CPU},
                        Case{"a row that is added", 1024, 2049, v1::BF16, v1::CUDA, false}}) {
    Maker m;
    const ValueId a = m.Input({c.rows, 1024}, c.dtype), b = m.Input({1024, c.columns}, c.dtype);
    const std::vector<int64_t> row = {c.columns}, all = {c.rows, c.columns};
    const ValueId added = m.Input(c.row ? row : all, c.dtype);
    m.Node("kiln.gemm.default", GemmArguments({.a = a, .b = b, .c = added}), m.Type(all, c.dtype));
    MoveTo(m, c.device);
    const Gemm gemm = *GemmOf(m.graph, m.graph.nodes[0]);
    EXPECT_EQ(WantsPaddedRows(m.graph, gemm, Machine()), std::string(c.what) == "all") << c.what;
  }
}

TEST(Choose, AKernelOrAGemmForAConvolution) {
  struct Case {
    Implementation chosen;
    v1::DeviceType device = v1::CPU;
    int64_t groups = 1, kernel = 1, stride = 1, channels = 16;
    v1::DType dtype = v1::F32;
    int64_t unrolled = 25;  // points of a window
  };
  constexpr Implementation kGemm = Implementation::kGemm, kKernel = Implementation::kKernel,
                           kLibrary = Implementation::kLibrary;
  for (const Case& c : {Case{kGemm}, Case{kLibrary, v1::CUDA}, Case{kLibrary, v1::CPU, 1, 3},
                        Case{kLibrary, v1::CPU, 1, 1, 2}, Case{kLibrary, v1::CPU, 1, 1, 1, 1024},
                        Case{kLibrary, v1::CPU, 1, 1, 1, 16, v1::F64}, Case{kKernel, v1::CUDA, 16, 3},
                        Case{kLibrary, v1::CPU, 16, 3}, Case{kLibrary, v1::CUDA, 16, 7},
                        Case{kLibrary, v1::CUDA, 4, 3}, Case{kKernel, v1::CUDA, 16, 7, 1, 16, v1::F32, 49},
                        Case{kLibrary, v1::CUDA, 16, 7, 1, 16, v1::F32, 48}}) {
    Maker m;
    const int64_t size = (8 - 1) / c.stride + 1;
    const ValueId x = m.Input({2, c.channels, 8, 8}, c.dtype),
                  w = m.Input({c.channels, c.channels / c.groups, c.kernel, c.kernel}, c.dtype);
    m.Node("aten.convolution.default",
           {{"input", T(x)},
            {"weight", T(w)},
            {"stride", m.Ints({c.stride, c.stride})},
            {"padding", m.Ints({c.kernel / 2, c.kernel / 2})},
            {"dilation", m.Ints({1, 1})},
            {"transposed", BoolArg{false}},
            {"groups", m.Int(c.groups)}},
           m.Type({2, c.channels, size, size}, c.dtype));
    MoveTo(m, c.device);
    Machine machine;
    machine.gpu_libraries.unrolled_window_points_max = c.unrolled;
    const Convolution convolution = *ConvolutionOf(m.graph, m.graph.nodes[0]);
    EXPECT_EQ(Choose(m.graph, convolution, machine), c.chosen) << m.graph.ToString();
  }
}

TEST(Choose, PatchesForAConvolution) {
  struct Case {
    const char* what;
    v1::DeviceType device = v1::CUDA;
    int64_t groups = 1, kernel = 2, stride = 2, padding = 0;
    v1::DType dtype = v1::F32;
    bool transposed = false, gradients = false;
  };
  for (const Case& c :
       {Case{"all"}, Case{"all", v1::CUDA, 1, 2, 2, 0, v1::BF16}, Case{"a GPU", v1::CPU},
        Case{"no groups", v1::CUDA, 2}, Case{"several points", v1::CUDA, 1, 1, 1},
        Case{"no overlap", v1::CUDA, 1, 2, 1}, Case{"no padding", v1::CUDA, 1, 2, 2, 1},
        Case{"no F64", v1::CUDA, 1, 2, 2, 0, v1::F64}, Case{"one way", v1::CUDA, 1, 2, 2, 0, v1::F32, true},
        Case{"the convolution itself", v1::CUDA, 1, 2, 2, 0, v1::F32, false, true}}) {
    Maker m;
    const ValueId x = m.Input({2, 16, 8, 8}, c.dtype),
                  w = m.Input({16, 16 / c.groups, c.kernel, c.kernel}, c.dtype);
    const int64_t size = (8 + 2 * c.padding - c.kernel) / c.stride + 1;
    Maker::Args args = {{"input", T(x)},
                        {"weight", T(w)},
                        {"stride", m.Ints({c.stride, c.stride})},
                        {"padding", m.Ints({c.padding, c.padding})},
                        {"dilation", m.Ints({1, 1})},
                        {"transposed", BoolArg{c.transposed}},
                        {"groups", m.Int(c.groups)}};
    const TensorType type = m.Type({2, 16, size, size}, c.dtype);
    if (c.gradients) {
      args.emplace_back("grad_output", T(m.Input({2, 16, size, size}, c.dtype)));
      m.Nodes("aten.convolution_backward.default", args, {m.graph.type(x), m.graph.type(w), TensorType()});
    } else {
      m.Node("aten.convolution.default", args, type);
    }
    MoveTo(m, c.device);
    const Convolution convolution = *ConvolutionOf(m.graph, m.graph.nodes[0]);
    const Implementation chosen = Choose(m.graph, convolution, Machine());
    EXPECT_EQ(chosen == Implementation::kPatches, std::string(c.what) == "all") << c.what;
  }
}

// Gradients of a convolution that keeps the sizes of images.
struct Gradients : Maker {
  int64_t channels = 16, groups = 1, window = 3;
  v1::DType dtype = v1::F32;
  // Layouts: channels-last (c), row-major (r), or a result that nobody wants (-).
  char image = 'c', of_image = 'c', of_weight = 'c';

  Convolution Make(v1::DeviceType device) {
    const ValueId x = Input({2, channels, 8, 8}, dtype), g = Input({2, channels, 8, 8}, dtype),
                  w = Input({channels, channels / groups, window, window}, dtype);
    const TensorType image_type = graph.type(x), weight_type = graph.type(w);
    graph.values[x] = WithLayout(image_type, image);
    Nodes("aten.convolution_backward.default",
          {{"grad_output", T(g)},
           {"input", T(x)},
           {"weight", T(w)},
           {"stride", Ints({1, 1})},
           {"padding", Ints({window / 2, window / 2})},
           {"dilation", Ints({1, 1})},
           {"transposed", BoolArg{false}},
           {"groups", Int(groups)}},
          {WithLayout(image_type, of_image), WithLayout(weight_type, of_weight), TensorType()});
    MoveTo(*this, device);
    return *ConvolutionOf(graph, graph.nodes[0]);
  }
  TensorType WithLayout(TensorType type, char layout) {
    if (layout == '-') return {};
    if (layout == 'c') type.strides = ChannelsLastStrides(graph.exprs, type.sizes);
    return type;
  }
};

TEST(Choose, TheLayoutOfGradients) {
  struct Case {
    bool can, chosen;
    v1::DeviceType device = v1::CUDA;
    int64_t groups = 1;
    v1::DType dtype = v1::F32;
    char image = 'c', of_image = 'c', of_weight = 'c';
  };
  for (const Case& c : {Case{true, true}, Case{true, true, v1::CPU}, Case{false, true, v1::CUDA, 1, v1::F64},
                        Case{false, false, v1::CPU, 1, v1::F64}, Case{false, false, v1::CUDA, 2},
                        Case{true, false, v1::CPU, 16}, Case{false, false, v1::CUDA, 16},
                        Case{true, false, v1::CUDA, 1, v1::F32, 'c', 'r'},
                        Case{true, true, v1::CUDA, 1, v1::F32, 'c', '-', '-'},
                        Case{true, false, v1::CUDA, 1, v1::F32, 'r', '-', '-'},
                        Case{true, true, v1::CUDA, 1, v1::F32, 'r', '-', 'c'},
                        Case{true, false, v1::CPU, 1, v1::F32, 'r', '-', 'c'}}) {
    Gradients m;
    m.groups = c.groups, m.dtype = c.dtype;
    m.image = c.image, m.of_image = c.of_image, m.of_weight = c.of_weight;
    const Convolution convolution = m.Make(c.device);
    EXPECT_EQ(CanComputeGradientsChannelsLast(m.graph, convolution), c.can) << m.graph.ToString();
    EXPECT_EQ(ComputesGradientsChannelsLast(m.graph.exprs, m.graph, m.graph.nodes[0], convolution), c.chosen)
        << m.graph.ToString();
  }
}

TEST(Choose, GroupsOfChannelsForGradients) {
  struct Case {
    const char* what;
    int64_t channels = 768, window = 7, inputs_of_group = 1;
    char image = 'c';
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CPU;
  };
  for (const Case& c :
       {Case{"all"}, Case{"channels", 640}, Case{"windows", 768, 5}, Case{"a window a channel", 768, 7, 2},
        Case{"channels-last", 768, 7, 1, 'r'}, Case{"F32", 768, 7, 1, 'c', v1::F64},
        Case{"a CPU", 768, 7, 1, 'c', v1::F32, v1::CUDA}}) {
    Gradients m;
    m.channels = c.channels, m.groups = c.channels / c.inputs_of_group, m.window = c.window;
    m.image = c.image, m.dtype = c.dtype;
    const Convolution convolution = m.Make(c.device);
    const std::optional<int64_t> chosen = ChannelsAtOnce(m.graph.exprs, m.graph, convolution);
    EXPECT_EQ(chosen, std::string(c.what) == "all" ? std::optional<int64_t>(160) : std::nullopt) << c.what;
  }
  // Each channel of the image has two windows.
  Gradients m;
  m.channels = m.groups = 768, m.window = 7;
  Convolution convolution = m.Make(v1::CPU);
  convolution.weight = m.Input({2 * m.channels, 1, m.window, m.window});
  EXPECT_EQ(ChannelsAtOnce(m.graph.exprs, m.graph, convolution), std::nullopt);
}

TEST(Choose, GemmsForAttention) {
  struct Case {
    const char* what;
    int64_t images = 1, heads = 8, keys = 256;
    bool causal = false;
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CUDA;
  };
  for (const Case& c :
       {Case{"all"}, Case{"all", 8, 1}, Case{"one image or head", 8, 8}, Case{"keys", 1, 8, 64},
        Case{"no mask", 1, 8, 256, true}, Case{"F32", 1, 8, 256, false, v1::BF16},
        Case{"a GPU", 1, 8, 256, false, v1::F32, v1::CPU}}) {
    Maker m;
    const ValueId query = m.Input({c.images, c.heads, 64, 32}, c.dtype),
                  key = m.Input({c.images, c.heads, c.keys, 32}, c.dtype),
                  value = m.Input({c.images, c.heads, c.keys, 32}, c.dtype);
    m.Node("aten._scaled_dot_product_efficient_attention.default",
           {{"query", T(query)}, {"key", T(key)}, {"value", T(value)}, {"is_causal", BoolArg{c.causal}}},
           m.graph.type(query));
    MakeLibraryNodes(m.graph);
    MoveTo(m, c.device);
    const Machine machine;
    const Implementation chosen = Choose(m.graph, *AttentionOf(m.graph, m.graph.nodes[0]), machine);
    EXPECT_EQ(chosen, std::string(c.what) == "all" ? Implementation::kGemm : Implementation::kLibrary)
        << c.what;
  }
}

}  // namespace
}  // namespace kiln
