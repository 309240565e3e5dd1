// Rows of the table of machines: who has which, what is in a key, and what differs between their code.
#include "compiler/target/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "compiler/codegen/codegen_backend.h"
#include "compiler/graph/key.h"
#include "compiler/image/gpu_image.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/support/proto_util.h"
#include "compiler/target/cost_model.h"
#include "tests/conformance/arm_target.h"
#include "tests/conformance/gpu_target.h"
#include "tests/conformance/host_target.h"
#include "tests/unit/loop_graph_maker.h"

namespace kiln {
namespace {

using testing::Maker;

v1::Target CpuOf(absl::string_view machine) {
  v1::Target target = X86Target(/*avx512=*/false);
  target.set_machine(std::string(machine));
  return target;
}

v1::Target ArmOf(absl::string_view machine) { return NeonTarget(std::string(machine)); }

v1::Target GpuOf(absl::string_view machine) {
  v1::Target target = GpuTarget("sm_90");
  target.set_machine(std::string(machine));
  return target;
}

TEST(Machine, ProcessorsHaveTheRowOfTheirKind) {
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x1a, 0x02}), "zen5");
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x1a, 0x44}), "zen5");
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x19, 0x01}), "zen3");
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x19, 0x21}), "zen3");
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x19, 0x11}), "zen4");
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x19, 0x61}), "zen4");
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x17, 0x60}), "renoir");
  EXPECT_EQ(CpuMachineName({CpuVendor::kAmd, 0x17, 0x31}), "");    // the servers of that family
  EXPECT_EQ(CpuMachineName({CpuVendor::kOther, 0x19, 0x11}), "");  // another vendor's numbers
  EXPECT_EQ(CpuMachineName({CpuVendor::kIntel, 6, 0x8f}), "intel");
  EXPECT_EQ(CpuMachineName({CpuVendor::kIntel, 0x19, 0x11}), "intel");
  EXPECT_EQ(GpuMachineName("sm_80", 108), "a100");
  EXPECT_EQ(GpuMachineName("sm_90", 132), "h100");
  EXPECT_EQ(GpuMachineName("sm_100", 148), "b200");
  EXPECT_EQ(GpuMachineName("sm_90", 16), "");  // a part of one
  EXPECT_EQ(GpuMachineName("sm_80", 132), "");
}

TEST(Machine, ATargetWithoutARowOfItsKindIsGeneric) {
  EXPECT_EQ(MachineOf(CpuOf("zen5")).name, "zen5");
  EXPECT_TRUE(MachineOf(CpuOf("zen5")).cpu.prefetch.crosses_pages);
  EXPECT_EQ(MachineOf(ArmOf("grace")).name, "grace");
  EXPECT_EQ(MachineOf(ArmOf("grace")).cpu.last_level_bytes, 114 << 20);
  EXPECT_EQ(MachineOf(GpuOf("a100")).gpu.multiprocessors, 108);
  for (const v1::Target& target : {CpuOf(""), CpuOf("zen77"), CpuOf("a100"), CpuOf("grace"), ArmOf(""),
                                   ArmOf("zen5"), GpuOf(""), GpuOf("zen5")}) {
    const Machine machine = MachineOf(target);
    EXPECT_EQ(machine.name, "");
    EXPECT_EQ(machine.gpu.multiprocessors, Machine().gpu.multiprocessors);
    EXPECT_FALSE(machine.cpu.prefetch.crosses_pages);
  }
}

// The row's name and the instructions are all that a key knows of a host.
TEST(Machine, HostsOfOneKindHaveEqualKeys) {
  const auto request_key = [](const v1::Target& target) {
    v1::RequestSections sections;
    sections.set_target(SerializeDeterministic(target));
    return RequestKey(sections);
  };
  const auto kernel_key = [](const v1::Target& target) {
    return KernelKey("ns", "kernel", target, 1, "build");
  };
  const v1::Target large =
                       CpuOf(CpuMachineName({CpuVendor::kAmd, 0x19, 0x11})),  // a server's, and a desktop's
      small = CpuOf(CpuMachineName({CpuVendor::kAmd, 0x19, 0x61})),
                   other = CpuOf(CpuMachineName({CpuVendor::kAmd, 0x1a, 0x02}));
  EXPECT_EQ(request_key(large), request_key(small));
  EXPECT_EQ(kernel_key(large), kernel_key(small));
  EXPECT_EQ(request_key(CpuOf(CpuMachineName({CpuVendor::kIntel, 6, 0x6a}))),
            request_key(CpuOf(CpuMachineName({CpuVendor::kIntel, 6, 0x8f}))));
  EXPECT_NE(request_key(large), request_key(other));
  EXPECT_NE(kernel_key(large), kernel_key(other));
  EXPECT_NE(kernel_key(GpuOf("h100")), kernel_key(GpuOf("")));
}

// The row and the instruction set say what MKL makes of a CPU, the caller what his torch has.
TEST(CostModel, OnednnWhereTorchHasItAndMklLeavesAvx512Unused) {
  struct Case {
    const char* what;
    v1::Target target;
    bool unused;
  };
  const auto x86 = [](bool avx512, const CpuId& id) {
    v1::Target target = X86Target(avx512);
    target.set_machine(std::string(CpuMachineName(id)));
    return target;
  };
  const CpuId zen3 = {CpuVendor::kAmd, 0x19, 0x01}, zen4 = {CpuVendor::kAmd, 0x19, 0x11},
              zen5 = {CpuVendor::kAmd, 0x1a, 0x02}, of_amd = {CpuVendor::kAmd, 0x1c, 0x01},
              of_another = {CpuVendor::kOther, 7, 0x5b}, xeon = {CpuVendor::kIntel, 6, 0x8f},
              later_xeon = {CpuVendor::kIntel, 0x13, 0x01};
  for (const Case& c :
       {Case{"Zen 3", x86(false, zen3), false}, Case{"Zen 4", x86(true, zen4), true},
        Case{"Zen 4 whose AVX-512 is hidden", x86(false, zen4), false}, Case{"Zen 5", x86(true, zen5), true},
        Case{"an unknown one of AMD's", x86(true, of_amd), true},
        Case{"an old one of AMD's", x86(false, of_amd), false},
        Case{"another vendor's", x86(true, of_another), true}, Case{"Intel's", x86(true, xeon), false},
        Case{"a later one of Intel's", x86(true, later_xeon), false},
        Case{"Intel's without AVX-512", x86(false, xeon), false}, Case{"Arm's", ArmOf(""), false},
        Case{"Grace", ArmOf("grace"), false}, Case{"a GPU", GpuOf("h100"), false}}) {
    for (const bool onednn : {false, true}) {
      Machine machine = MachineOf(c.target);
      machine.cpu_libraries.onednn = onednn;
      EXPECT_EQ(cost::PaysOnednn(machine), onednn && c.unused) << c.what;
      EXPECT_EQ(cost::PaysOnednnGemm(machine, 3 << 20), onednn && c.unused) << c.what;
      EXPECT_FALSE(cost::PaysOnednnGemm(machine, (3 << 20) - 1)) << c.what;
    }
  }
}

// The numbers that code was measured by, on the machines that it was measured on.
TEST(CostModel, ThresholdsOfTheGenericRow) {
  const Machine machine;
  EXPECT_EQ(cost::NontemporalBytesMin(machine), 16 << 20);
  EXPECT_EQ(cost::PrefetchedBytesMin(machine), 1 << 20);
  EXPECT_EQ(cost::SecondLevelRowBytesMax(machine), 256 << 10);
  EXPECT_EQ(cost::SharedColumnsBytesMin(machine), 8 << 10);
  EXPECT_TRUE(cost::PaysOnePassMoments(machine, 1 << 19));
  EXPECT_FALSE(cost::PaysOnePassMoments(machine, (1 << 19) - 1));
  EXPECT_TRUE(cost::PaysMomentsByBlocks(machine, 1 << 19, 8));
  EXPECT_FALSE(cost::PaysMomentsByBlocks(machine, 1 << 19, 7));
  EXPECT_FALSE(cost::PaysMomentsByBlocks(machine, (1 << 19) - 1, 8));
  EXPECT_EQ(cost::ManyPoints(machine), 1 << 18);
  EXPECT_EQ(cost::ManyRows(machine), 1 << 14);
  EXPECT_EQ(cost::FewPoints(machine), 1 << 10);
  EXPECT_EQ(cost::TilePointsMin(machine), 1 << 16);
  EXPECT_EQ(cost::LargeTilePoints(machine), 1 << 19);
  EXPECT_EQ(cost::MeasuredBytesMin(machine), 8 << 20);
  EXPECT_EQ(cost::LongRow(machine), 16 << 10);
  EXPECT_TRUE(cost::PaysLargestBlock(machine, 16 << 10, 4));
  EXPECT_FALSE(cost::PaysLargestBlock(machine, (16 << 10) - 1, 4));
  EXPECT_FALSE(cost::PaysLargestBlock(machine, 16 << 10, 8));
  EXPECT_EQ(cost::RowsOfStrip(machine, 264 * 8), 8);
  EXPECT_EQ(cost::RowsOfStrip(machine, 264 * 8 + 1), 9);
  EXPECT_EQ(cost::RowsOfStrip(machine, 1), 8);
  EXPECT_TRUE(cost::PaysStrips(machine, 8 << 10, 132));
  EXPECT_TRUE(cost::PaysStrips(machine, 128, 132));
  EXPECT_FALSE(cost::PaysStrips(machine, (8 << 10) + 1, 132));
  EXPECT_FALSE(cost::PaysStrips(machine, 127, 132));
  EXPECT_FALSE(cost::PaysStrips(machine, 128, 131));
  EXPECT_EQ(cost::LoadedWordsMax(machine, 256), 127);
  EXPECT_EQ(cost::LoadedWordsMax(machine, 1024), 32);
  EXPECT_TRUE(cost::PaysSplitColumns(machine, /*on_gpu=*/true, 2 << 20, 512));
  EXPECT_FALSE(cost::PaysSplitColumns(machine, /*on_gpu=*/true, (2 << 20) - 1, 512));
  EXPECT_TRUE(cost::PaysSplitColumns(machine, /*on_gpu=*/true, 512 << 10, 2048));
  EXPECT_TRUE(cost::PaysUnrolledWindow(machine, 5, 5));
  EXPECT_TRUE(cost::PaysUnrolledWindow(machine, 1, 25));
  EXPECT_FALSE(cost::PaysUnrolledWindow(machine, 1, 26));
  EXPECT_FALSE(cost::PaysUnrolledWindow(machine, 2, 13));
  EXPECT_FALSE(cost::PaysUnrolledWindow(machine, 0, 5));
}

TEST(CostModel, GemmsOfFewRowsByAKernel) {
  Machine machine;
  const int64_t cached = machine.gpu.second_level_bytes;
  EXPECT_TRUE(cost::PaysGemmKernel(machine, 16, cached, false));
  EXPECT_FALSE(cost::PaysGemmKernel(machine, 17, cached, false));
  EXPECT_TRUE(cost::PaysGemmKernel(machine, 8, cached + 1, true));
  EXPECT_FALSE(cost::PaysGemmKernel(machine, 9, cached + 1, true));
  EXPECT_TRUE(cost::PaysGemmTiles(machine, 64));
  EXPECT_FALSE(cost::PaysGemmTiles(machine, 63));
  machine.gpu_libraries.tf32 = true;
  EXPECT_TRUE(cost::PaysGemmKernel(machine, 8, cached, false));
  EXPECT_FALSE(cost::PaysGemmKernel(machine, 8, cached, true));
  machine.gpu.cluster_blocks_max = 1;
  EXPECT_FALSE(cost::PaysGemmTiles(machine, 64));
  EXPECT_FALSE(cost::PaysGemmKernel(machine, 1, 1, false));
  // Weights are made once, what is of the rows for all columns.
  EXPECT_TRUE(cost::PaysMakingFactor({.ops = 16, .loads = 4}, /*once=*/true));
  EXPECT_FALSE(cost::PaysMakingFactor({.ops = 17, .loads = 1}, /*once=*/true));
  EXPECT_FALSE(cost::PaysMakingFactor({.ops = 2, .loads = 1, .heavy = true}, /*once=*/true));
  EXPECT_TRUE(cost::PaysMakingFactor({.ops = 12, .loads = 2}, /*once=*/false));
  EXPECT_FALSE(cost::PaysMakingFactor({.ops = 12, .loads = 3}, /*once=*/false));
}

TEST(Machine, HasClustersByItsArchitecture) {
  for (const auto& [architecture, blocks] : std::vector<std::pair<const char*, int64_t>>{
           {"sm_80", 1}, {"sm_89", 1}, {"sm_90", 8}, {"sm_90a", 8}, {"sm_100", 8}}) {
    for (const char* name : {"", "h100"}) {
      v1::Target target = GpuTarget(architecture);
      target.set_machine(name);
      EXPECT_EQ(MachineOf(target).gpu.cluster_blocks_max, blocks) << architecture << name;
    }
  }
}

TEST(CostModel, LaunchesAndForksCostWhatTheRowSays) {
  Machine machine;
  EXPECT_EQ(cost::UnitIterations(machine), 16 << 10);
  EXPECT_EQ(cost::LayoutBytesMin(machine), 32 << 10);
  EXPECT_TRUE(cost::PaysParallelism(machine, 8, (4 << 10) + 1));
  EXPECT_FALSE(cost::PaysParallelism(machine, 8, 4 << 10));
  EXPECT_FALSE(cost::PaysParallelism(machine, 16, 4 << 10));
  machine.cpu.fork_iterations *= 2;
  machine.gpu.launch_ns *= 2;
  EXPECT_EQ(cost::UnitIterations(machine), 32 << 10);
  EXPECT_EQ(cost::LayoutBytesMin(machine), 64 << 10);
  EXPECT_FALSE(cost::PaysParallelism(machine, 8, (4 << 10) + 1));
  EXPECT_EQ(cost::MeasuredBytesMin(machine), 16 << 20);
}

TEST(CostModel, ThresholdsOfEveryRow) {
  EXPECT_TRUE(cost::PaysWeightMatrix(1024));
  EXPECT_FALSE(cost::PaysWeightMatrix(1025));
  EXPECT_TRUE(cost::PaysWeightMatrix(std::nullopt));
  EXPECT_TRUE(cost::PaysPoolingGradient(/*on_gpu=*/true, 5, 5));
  EXPECT_TRUE(cost::PaysPoolingGradient(/*on_gpu=*/true, 25, 1));
  EXPECT_FALSE(cost::PaysPoolingGradient(/*on_gpu=*/true, 26, 1));
  EXPECT_FALSE(cost::PaysPoolingGradient(/*on_gpu=*/true, 2, 13));
  EXPECT_FALSE(cost::PaysPoolingGradient(/*on_gpu=*/false, 5, 5));
  EXPECT_TRUE(cost::PaysChoosingPieces(4, {.ops = 20}, 2));
  EXPECT_FALSE(cost::PaysChoosingPieces(5, {.ops = 20}, 2));
  EXPECT_FALSE(cost::PaysChoosingPieces(4, {.ops = 21}, 2));
  EXPECT_FALSE(cost::PaysChoosingPieces(4, {.heavy = true}, 2));
  EXPECT_FALSE(cost::PaysChoosingPieces(4, {.ops = 20}, 3));
  EXPECT_TRUE(cost::PaysComparingAll(4096));
  EXPECT_FALSE(cost::PaysComparingAll(4097));
  EXPECT_FALSE(cost::PaysComparingAll(std::nullopt));
  EXPECT_TRUE(cost::LeavesThreadsIdle(16));
  EXPECT_FALSE(cost::LeavesThreadsIdle(17));
  EXPECT_FALSE(cost::LeavesThreadsIdle(std::nullopt));
  EXPECT_TRUE(cost::PaysSplitSum(32769));
  EXPECT_FALSE(cost::PaysSplitSum(32768));
  EXPECT_TRUE(cost::PaysFusingReaders(64));
  EXPECT_FALSE(cost::PaysFusingReaders(65));
  EXPECT_TRUE(cost::PaysFusingMembers(65));
  EXPECT_FALSE(cost::PaysFusingMembers(64));
  EXPECT_TRUE(cost::PaysGathering(32, 32 << 5));
  EXPECT_FALSE(cost::PaysGathering(33, 32 << 5));
  EXPECT_TRUE(cost::PaysLanes(4));
  EXPECT_FALSE(cost::PaysLanes(3));
  EXPECT_EQ(cost::AccessWeight(100, /*store=*/false), 100);
  EXPECT_EQ(cost::AccessWeight(100, /*store=*/true), 200);
  EXPECT_GT(cost::LaneMerit(1, false), cost::LaneMerit(0, false));
  EXPECT_GT(cost::LaneMerit(0, false), cost::LaneMerit(2, false));
  EXPECT_EQ(cost::LaneMerit(2, false), cost::LaneMerit(std::nullopt, false));
  EXPECT_GT(cost::LaneMerit(2, true), cost::LaneMerit(0, true));
  EXPECT_TRUE(cost::PaysSharedLaunch(4));
  EXPECT_FALSE(cost::PaysSharedLaunch(3));
  EXPECT_TRUE(cost::PaysInlining(LoopOpcode::kExp));
  EXPECT_FALSE(cost::PaysInlining(LoopOpcode::kPow));
  EXPECT_TRUE(cost::PaysShiftedReduction(1024, /*from_memory=*/false));
  EXPECT_FALSE(cost::PaysShiftedReduction(1023, /*from_memory=*/false));
  EXPECT_TRUE(cost::PaysShiftedReduction(256, /*from_memory=*/true));
  EXPECT_FALSE(cost::PaysShiftedReduction(255, /*from_memory=*/true));
  EXPECT_TRUE(cost::PaysRowPipeline(1024, 2, false));
  EXPECT_FALSE(cost::PaysRowPipeline(1023, 2, true));
  EXPECT_FALSE(cost::PaysRowPipeline(std::nullopt, 2, true));
  EXPECT_TRUE(cost::PaysRowPipeline(1024, 3, true));
  EXPECT_FALSE(cost::PaysRowPipeline(1024, 3, false));
  EXPECT_TRUE(cost::PaysNarrowVectors(127, 16));
  EXPECT_FALSE(cost::PaysNarrowVectors(112, 16));
  EXPECT_FALSE(cost::PaysNarrowVectors(129, 16));
  EXPECT_TRUE(cost::PaysColumnBlocks(16, 4));
  EXPECT_FALSE(cost::PaysColumnBlocks(15, 4));
  EXPECT_FALSE(cost::PaysColumnBlocks(16, 3));
  EXPECT_LT(cost::ColumnStrideMin(/*on_gpu=*/true), cost::ColumnStrideMin(/*on_gpu=*/false));
  EXPECT_TRUE(cost::PaysTile(16));
  EXPECT_FALSE(cost::PaysTile(15));
  EXPECT_TRUE(cost::PaysSharedLoop(32, 8));
  EXPECT_FALSE(cost::PaysSharedLoop(31, 8));
}

TEST(CostModel, GradientsGoByGroupsWherePaddedWindowsAreMapped) {
  EXPECT_EQ(cost::ChannelsOfGradients(768, 7, 7), 160);  // the last one of 128
  EXPECT_EQ(cost::ChannelsOfGradients(668, 7, 7), 144);
  EXPECT_EQ(cost::ChannelsOfGradients(667, 7, 7), 667);
  EXPECT_EQ(cost::ChannelsOfGradients(768, std::nullopt, 7), 768);
  EXPECT_EQ(cost::ChannelsOfGradients(768, 7, 0), 768);
  EXPECT_EQ(cost::ChannelsOfGradients(768, int64_t{1} << 40, int64_t{1} << 40), 768);
}

TEST(CostModel, KernelsCostTheirLaunchesAndTheirBytes) {
  const double bytes = 2.0 * cost::kLargeCopyBytes;
  EXPECT_EQ(cost::KernelMicroseconds({.small = 2, .large = 152}, 3, bytes), 3 * 2 + 150);
  EXPECT_EQ(cost::KernelMicroseconds({.small = 2, .large = 1}, 3, bytes), 3 * 2);  // noise
}

TEST(CostModel, WhatIsNotKnownPaysOnlyWhereItMayBeSmall) {
  const Machine machine;
  Machine with_onednn;
  with_onednn.cpu_libraries.onednn = with_onednn.cpu_libraries.mkl_leaves_avx512_unused = true;
  EXPECT_TRUE(cost::PaysConv1x1AsGemm(machine, {.from = 256, .to = 256}));
  EXPECT_FALSE(cost::PaysConv1x1AsGemm(machine, {.from = 1024, .to = 256}));
  EXPECT_FALSE(cost::PaysConv1x1AsGemm(with_onednn, {.from = 256}));
  EXPECT_TRUE(cost::PaysConv1x1AsGemm(with_onednn, {.from = 256, .to = 256}));
  EXPECT_TRUE(cost::PaysChannelsLast(machine, 1 << 10, std::nullopt, std::nullopt));
  EXPECT_FALSE(cost::PaysChannelsLast(machine, 1 << 22, std::nullopt, 1 << 30));
  EXPECT_FALSE(cost::PaysChannelsLast(machine, std::nullopt, 1 << 30, 1 << 30));
}

// Rows that are reduced, and summed down their columns by the same kernel: in how many rows a strip has.
uint32_t RowsOfStrip(const Machine& machine) {
  Maker m;
  const int64_t rows = 4100, columns = 1024;
  const BufferId x = m.Input({rows, columns}), largest = m.Buffer({rows}), sums = m.Buffer({columns});
  m.RowReduce(rows, columns, x, largest, v1::REDUCE_MAX);
  m.Node({columns}, {rows},
         [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
           const LoopOpId value = r.Load(x, v1::F32, m.At(x, {i[0], o[0]}));
           r.Store(sums, v1::F32, m.At(sums, o), r.Reduce(v1::REDUCE_SUM, value));
         });
  for (const BufferId b : {largest, sums}) m.Output(b);
  for (LoopBuffer& buffer : m.graph.buffers) buffer.device = v1::CUDA;
  uint32_t longest = 0;
  for (const ScheduledStep& step : m.Run(true, machine).steps) {
    if (const auto* kernel = std::get_if<ScheduledKernel>(&step))
      longest = std::max(longest, kernel->kernel.schedule().chunk());
  }
  return longest;
}

TEST(Schedules, StripsOfRowsFollowTheMultiprocessors) {
  EXPECT_EQ(RowsOfStrip(MachineOf(GpuOf("h100"))), 16u);  // at most 2 × 132 strips
  EXPECT_EQ(RowsOfStrip(MachineOf(GpuOf("a100"))), 19u);  // 2 × 108
  EXPECT_EQ(RowsOfStrip(MachineOf(GpuOf("b200"))), 14u);  // 2 × 148
  EXPECT_EQ(RowsOfStrip(Machine()), 16u);
}

v1::Kernel Increment(int64_t count) {
  KernelBuilder m;
  const uint32_t n = m.Const(count);
  m.Outer(n);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n), out = m.Buffer(v1::F32, v1::WRITE, n);
  m.BeginStage({});
  m.Store(out, m.Var(0), m.Op(LoopOpcode::kAdd, v1::F32, {m.Load(in, m.Var(0)), m.Float(v1::F32, 1)}));
  m.Schedule(1, 4096, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

EmittedObject Emitted(const v1::Kernel& kernel, const v1::Target& target) {
  auto backend = NewCodegenBackend(target);
  EXPECT_TRUE(backend.ok()) << backend.status();
  if (!backend.ok()) return {};
  auto object = (*backend)->Emit(kernel, {}, true);
  EXPECT_TRUE(object.ok()) << object.status();
  return object.ok() ? *std::move(object) : EmittedObject();
}

// As many points as fill 108 multiprocessors with a vector for each thread, but not 132.
TEST(Schedules, ThreadsTakeVectorsWhereTheGpuIsFull) {
  const v1::Kernel kernel = Increment(200'000);
  const auto points = [&](absl::string_view machine) {
    auto image = ParseGpuImage(Emitted(kernel, GpuOf(machine)).bytes);
    EXPECT_TRUE(image.ok()) << image.status();
    return image.ok() ? image->points_per_block / image->threads : 0;
  };
  EXPECT_EQ(points("h100"), 1u);
  EXPECT_EQ(points(""), 1u);
  EXPECT_EQ(points("a100"), 4u);
}

TEST(Schedules, ASmallCacheIsStoredPastEarlier) {
  const auto nontemporal = [](int64_t count, absl::string_view machine) {
    return Emitted(Increment(count), CpuOf(machine)).listing.find("\tvmovntps") != std::string::npos;
  };
  const int64_t eight_mib = int64_t{1} << 21, four_mib = int64_t{1} << 20;
  EXPECT_TRUE(nontemporal(eight_mib, "renoir"));
  EXPECT_TRUE(nontemporal(four_mib, "renoir"));
  EXPECT_FALSE(nontemporal(four_mib - 16, "renoir"));
  EXPECT_FALSE(nontemporal(eight_mib, ""));
  EXPECT_FALSE(nontemporal(eight_mib, "zen5"));
}

TEST(Schedules, ALargeCacheIsStoredPastLater) {
  const auto nontemporal = [](int64_t bytes, absl::string_view machine) {
    return Emitted(Increment(bytes / 4), ArmOf(machine)).listing.find("\tstnp") != std::string::npos;
  };
  EXPECT_TRUE(nontemporal(32 << 20, "graviton2"));
  EXPECT_FALSE(nontemporal(32 << 20, "graviton4"));
  EXPECT_TRUE(nontemporal(36 << 20, "graviton4"));
  EXPECT_FALSE(nontemporal(64 << 20, "grace"));
  EXPECT_TRUE(nontemporal(114 << 20, "grace"));
}

TEST(Schedules, ColumnsBeyondASmallCacheTakeTwoPasses) {
  const auto steps = [](const Machine& machine) {
    Maker m;
    const BufferId x = m.Input({1024, 512}), y = m.Buffer({512});  // 2 MiB
    m.Node({512}, {1024}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
      const LoopOpId value = r.Load(x, v1::F32, m.At(x, {i[0], o[0]}));
      r.Store(y, v1::F32, m.At(y, o), r.Reduce(v1::REDUCE_SUM, value));
    });
    m.Output(y);
    for (LoopBuffer& buffer : m.graph.buffers) buffer.device = v1::CPU;
    return m.Run(true, machine).steps.size();
  };
  EXPECT_EQ(steps(MachineOf(CpuOf("zen4"))), 1u);
  EXPECT_EQ(steps(MachineOf(CpuOf("renoir"))), 2u);
}

}  // namespace
}  // namespace kiln
