// A plan's images: channels-last or as traced, and what max-autotune is told of their convolutions.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compiler/artifact/plan.h"
#include "compiler/artifact/tunables.h"
#include "compiler/graph/canonical.h"
#include "compiler/support/proto_util.h"

namespace kiln {
namespace {

struct Net {
  v1::GraphKind kind = v1::INFERENCE;
  v1::Mode mode = v1::MODE_MAX_AUTOTUNE;
  std::string triple = "nvptx64-nvidia-cuda";
  v1::DType dtype = v1::F32;
  bool traced_channels_last = false;  // all of its images
  bool without_tf32 = false;
};

v1::TensorMeta Meta(const Net& net, const std::vector<int64_t>& n) {
  v1::TensorMeta meta;
  meta.set_dtype(net.dtype);
  meta.mutable_device()->set_type(net.triple[0] == 'n' ? v1::CUDA : v1::CPU);
  for (const int64_t size : n) meta.add_sizes()->set_value(size);
  const std::vector<int64_t> strides = net.traced_channels_last
                                           ? std::vector<int64_t>{n[1] * n[2] * n[3], 1, n[3] * n[1], n[1]}
                                           : std::vector<int64_t>{n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
  for (const int64_t stride : strides) meta.add_strides()->set_value(stride);
  meta.mutable_storage_offset()->set_value(0);
  return meta;
}

// Two equal convolutions of 3 × 3 points and one of 1 × 1, each activated.
v1::PlanRequest RequestFor(const Net& net) {
  v1::Graph graph;
  graph.set_format_version(1);
  graph.set_kind(net.kind);
  *graph.add_inputs()->mutable_tensor() = Meta(net, {2, 8, 16, 16});
  *graph.add_inputs()->mutable_tensor() = Meta(net, {8, 8, 3, 3});
  *graph.add_inputs()->mutable_tensor() = Meta(net, {8, 8, 1, 1});
  uint32_t image = 0, next = 3;
  for (const bool wide : {true, true, false}) {
    v1::Node* convolution = graph.add_nodes();
    convolution->set_target("aten.convolution.default");
    const auto add = [&](const char* name) {
      v1::NamedArgument* argument = convolution->add_args();
      argument->set_name(name);
      return argument->mutable_value();
    };
    const auto pair = [&](const char* name, int64_t value) {
      v1::Argument::Ints* ints = add(name)->mutable_as_ints();
      ints->add_values(value);
      ints->add_values(value);
    };
    add("input")->set_as_tensor(image);
    add("weight")->set_as_tensor(wide ? 1 : 2);
    add("bias")->mutable_as_none();
    pair("stride", 1);
    pair("padding", wide ? 1 : 0);
    pair("dilation", 1);
    add("transposed")->set_as_bool(false);
    pair("output_padding", 0);
    add("groups")->set_as_int(1);
    *convolution->add_results() = Meta(net, {2, 8, 16, 16});
    v1::Node* relu = graph.add_nodes();
    relu->set_target("aten.relu.default");
    v1::NamedArgument* self = relu->add_args();
    self->set_name("self");
    self->mutable_value()->set_as_tensor(next++);
    *relu->add_results() = Meta(net, {2, 8, 16, 16});
    image = next++;
  }
  graph.add_outputs()->set_value(image);
  v1::PlanRequest request;
  const auto canonical = Canonicalize(graph);
  EXPECT_TRUE(canonical.ok()) << canonical.status();
  if (canonical.ok()) request.set_graph(canonical->bytes);
  v1::Options options;
  options.set_mode(net.mode);
  v1::Target target;
  target.set_triple(net.triple);
  v1::Numerics numerics;
  numerics.set_convolutions_without_tf32(net.without_tf32);
  numerics.set_float32_matmul_precision("highest");
  request.mutable_sections()->set_options(SerializeDeterministic(options));
  request.mutable_sections()->set_target(SerializeDeterministic(target));
  request.mutable_sections()->set_numerics(SerializeDeterministic(numerics));
  return request;
}

v1::PlanReply PlanFor(const Net& net, bool keep_traced_layout = false) {
  v1::PlanRequest request = RequestFor(net);
  request.set_keep_traced_layout(keep_traced_layout);
  const auto reply = PlanGraph(request);
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? *reply : v1::PlanReply();
}

TEST(PlanImages, LieAsThePlanWasAskedFor) {
  for (const bool keep_traced_layout : {false, true}) {
    const v1::PlanReply plan = PlanFor({}, keep_traced_layout);
    ASSERT_EQ(plan.images().measured_size(), 2);
    const v1::ImageConvolutions::Use &wide = plan.images().measured(0), &point = plan.images().measured(1);
    EXPECT_EQ(wide.calls(), 2u);
    EXPECT_EQ(wide.tunable().convolution().channels_last(), !keep_traced_layout);
    EXPECT_EQ(point.calls(), 1u);
    EXPECT_EQ(point.tunable().gemm().batch(), keep_traced_layout ? 2 : 1);  // of each image, or of all points
    EXPECT_EQ(plan.images().others(), 0u);
    EXPECT_EQ(plan.tunables_size(), 2);
  }
}

TEST(PlanImages, AreNoQuestionWhereTheCompilerChangesNone) {
  EXPECT_TRUE(PlanFor({}).has_images());
  EXPECT_FALSE(PlanFor({.kind = v1::FORWARD}).has_images());  // its backward's are not known
  EXPECT_FALSE(PlanFor({.mode = v1::MODE_DEFAULT}).has_images());
  EXPECT_FALSE(PlanFor({.triple = "x86_64-linux-gnu"}).has_images());
  EXPECT_FALSE(PlanFor({.dtype = v1::F64}).has_images());
  EXPECT_FALSE(PlanFor({.traced_channels_last = true}).has_images());
}

TEST(PlanImages, AreMeasuredInThePrecisionThatTheyRunIn) {
  for (const bool without : {false, true}) {
    const v1::PlanReply plan = PlanFor({.without_tf32 = without});
    EXPECT_EQ(plan.tunables_size(), 2);
    // One that becomes a gemm takes the precision of gemms.
    for (const v1::Tunable& tunable : plan.tunables()) {
      if (tunable.has_gemm()) {
        EXPECT_FALSE(tunable.gemm().tf32());
      } else {
        EXPECT_EQ(tunable.convolution().tf32(), !without);
      }
    }
  }
}

TEST(PlanImages, CallsThatNothingDescribesAreCounted) {
  v1::Numerics numerics;
  v1::Program program = PlanFor({}).program();
  ASSERT_EQ(ImageConvolutionsOf(program, numerics).others(), 0u);
  for (v1::Step& step : *program.mutable_steps()) {
    if (!step.has_call()) continue;
    for (v1::NamedArgument& argument : *step.mutable_call()->mutable_args()) {
      if (argument.name() == "transposed") argument.mutable_value()->set_as_bool(true);
    }
    break;
  }
  EXPECT_EQ(ImageConvolutionsOf(program, numerics).others(), 1u);
}

}  // namespace
}  // namespace kiln
