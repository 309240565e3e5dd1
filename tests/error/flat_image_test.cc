// Bytes that are no image are refused before anything is mapped, and objects that would need a linker
// are refused by the name of the symbol.
#include "compiler/image/flat_image.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>

#include "compiler/codegen/codegen_backend.h"
#include "compiler/codegen/image_builder.h"
#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/host_target.h"

namespace kiln {
namespace {

v1::Kernel CopyKernel() {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(out, b.Var(0), b.Op(LoopOpcode::kExp, v1::F32, {b.Load(in, b.Var(0))}));
  b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
  return b.Build();
}

class FlatImageTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = NewCodegenBackend(X86Target(false));
    ASSERT_TRUE(backend.ok()) << backend.status();
    auto object = (*backend)->Emit(CopyKernel(), {}, false);
    ASSERT_TRUE(object.ok()) << object.status();
    image_ = object->bytes;
    ASSERT_TRUE(CheckFlatImage(image_).ok());
  }

  template <typename T>
  std::string With(size_t offset, T value) {
    std::string changed = image_;
    std::memcpy(changed.data() + offset, &value, sizeof(value));
    return changed;
  }

  std::string image_;
};

TEST_F(FlatImageTest, RefusesEveryBadField) {
  EXPECT_EQ(CheckFlatImage("").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckFlatImage(image_.substr(0, 63)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckFlatImage(image_ + "x").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckFlatImage(image_.substr(0, image_.size() - 1)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckFlatImage(With<char>(0, 'x')).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckFlatImage(With<uint32_t>(8, KILN_KERNEL_ABI_VERSION + 1)).code(),
            absl::StatusCode::kFailedPrecondition);
  const uint64_t size = image_.size();
  for (size_t field : {offsetof(FlatImageHeader, total_size), offsetof(FlatImageHeader, text_offset),
                       offsetof(FlatImageHeader, text_size), offsetof(FlatImageHeader, entry_offset),
                       offsetof(FlatImageHeader, reserved)}) {
    for (uint64_t value : {size + 1, ~uint64_t{0}, ~uint64_t{0} - 63, uint64_t{1} << 40}) {
      EXPECT_EQ(CheckFlatImage(With(field, value)).code(), absl::StatusCode::kDataLoss)
          << field << " " << value;
    }
  }
  EXPECT_FALSE(CheckFlatImage(With<uint64_t>(offsetof(FlatImageHeader, text_size), 0)).ok());
  EXPECT_FALSE(CheckFlatImage(With<uint64_t>(offsetof(FlatImageHeader, machine), 1 << 16)).ok());
  EXPECT_FALSE(CheckFlatImage(With<uint64_t>(offsetof(FlatImageHeader, entry_offset), 64 - 1)).ok());
}

TEST_F(FlatImageTest, CodeOfAnotherMachineIsAnImageAndNotLoaded) {
  const std::string other = With<uint64_t>(offsetof(FlatImageHeader, machine), EM_AARCH64);
  EXPECT_TRUE(CheckFlatImage(other).ok());
  const absl::string_view images[] = {other};
  EXPECT_EQ(LoadImages(images).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(FlatImageTest, OneBadImageOfSeveralLoadsNone) {
  const std::string bad = With<char>(0, 'x');
  const absl::string_view images[] = {image_, bad};
  EXPECT_FALSE(LoadImages(images).ok());
  const absl::string_view good[] = {image_, image_, image_};
  auto loaded = LoadImages(good);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ((*loaded)->size(), 3);
  EXPECT_NE((*loaded)->entry(0), (*loaded)->entry(2));
}

TEST_F(FlatImageTest, RandomHeadersAreCheckedWithoutHarm) {
  std::mt19937_64 random(1);
  for (int k = 0; k < 20000; ++k) {
    std::string changed = image_;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      changed[random() % sizeof(FlatImageHeader)] ^= static_cast<char>(1 << (random() % 8));
    }
    (void)CheckFlatImage(changed.substr(0, random() % 2 ? changed.size() : random() % changed.size()));
  }
}

TEST_F(FlatImageTest, GarbageObjectsAreRefused) {
  EXPECT_FALSE(BuildFlatImage("", "kiln_kernel").ok());
  EXPECT_FALSE(BuildFlatImage(std::string(4096, '\x7f'), "kiln_kernel").ok());
  EXPECT_FALSE(BuildFlatImage(image_, "kiln_kernel").ok());
}

// The C compiler stands in for a code generator that slips in what only a linker could mend.
std::string CompileC(const std::string& source, const std::string& compiler = "cc") {
  const std::string path = testing::TempDir() + "kiln_image_test_" + std::to_string(getpid());
  std::ofstream(path + ".c") << source;
  const std::string command =
      compiler + " -O1 -fPIC -fno-asynchronous-unwind-tables -c " + path + ".c -o " + path + ".o";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream object(path + ".o", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(object)), std::istreambuf_iterator<char>());
  std::remove((path + ".c").c_str());
  std::remove((path + ".o").c_str());
  return bytes;
}

TEST(ImageBuilderTest, NamesWhatWouldNeedALinker) {
  EXPECT_TRUE(BuildFlatImage(CompileC("int kiln_kernel(int x) { return x + 1; }"), "kiln_kernel").ok());
  const std::pair<const char*, const char*> bad[] = {
      {"double sin(double); double kiln_kernel(double x) { return sin(x) + 1; }", "sin"},
      {"extern int far_away; int kiln_kernel(void) { return far_away; }", "far_away"},
      {"static int counter; int kiln_kernel(void) { return ++counter; }", "writable section .bss"},
      {"int other(void) { return 1; }", "kiln_kernel"}};
  for (auto [source, name] : bad) {
    const absl::Status status = BuildFlatImage(CompileC(source), "kiln_kernel").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << source;
    EXPECT_NE(status.message().find(name), absl::string_view::npos) << status;
  }
}

// On AArch64 an instruction reaches 1 MiB; what is asked for lies before it.
TEST(ImageBuilderTest, RefusesCodeThatIsTooFarFromItsConstants) {
  const std::string compiler = "aarch64-linux-gnu-gcc";
  if (std::system((compiler + " --version > /dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << compiler << " is not installed";
  }
  const auto built = [&](int bytes) {
    const std::string padding = "asm(\".text\\n.space " + std::to_string(bytes) + "\");";
    return BuildFlatImage(CompileC("static const double table[] = {1, 2, 3, 4};" + padding +
                                       "double kiln_kernel(int i) { return table[i & 3]; }",
                                   compiler + " -mcmodel=tiny"),
                          "kiln_kernel")
        .status();
  };
  EXPECT_TRUE(built((1 << 20) - 4096).ok()) << built((1 << 20) - 4096);
  EXPECT_EQ(built(1 << 20).code(), absl::StatusCode::kUnimplemented) << built(1 << 20);
}

// An object of the C compiler's whose relocations and symbols can be changed.
class ElfObject {
 public:
  explicit ElfObject(std::string bytes) : bytes_(std::move(bytes)) {
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes_.data());
    for (int i = 0; i < header->e_shnum; ++i) {
      const auto* section = reinterpret_cast<const Elf64_Shdr*>(bytes_.data() + header->e_shoff) + i;
      const auto* flags =
          reinterpret_cast<const Elf64_Shdr*>(bytes_.data() + header->e_shoff) + section->sh_info;
      if (section->sh_type == SHT_RELA && (flags->sh_flags & SHF_EXECINSTR) != 0) rela_ = section->sh_offset;
      if (section->sh_type == SHT_SYMTAB) symbols_ = section->sh_offset;
    }
  }
  // Of the first relocation of code.
  Elf64_Rela* relocation() { return reinterpret_cast<Elf64_Rela*>(bytes_.data() + rela_); }
  Elf64_Sym* symbol() {
    return reinterpret_cast<Elf64_Sym*>(bytes_.data() + symbols_) + ELF64_R_SYM(relocation()->r_info);
  }
  void SetType(uint32_t type) {
    relocation()->r_info = ELF64_R_INFO(ELF64_R_SYM(relocation()->r_info), type);
  }
  void SetSymbol(uint32_t symbol) {
    relocation()->r_info = ELF64_R_INFO(symbol, ELF64_R_TYPE(relocation()->r_info));
  }
  bool found() const { return rela_ > 0 && symbols_ > 0; }
  absl::Status Build() const { return BuildFlatImage(bytes_, "kiln_kernel").status(); }

 private:
  std::string bytes_;
  size_t rela_ = 0, symbols_ = 0;
};

class RelocationTest : public testing::Test {
 protected:
  RelocationTest()
      : object_(CompileC("static const double table[] = {1, 2, 3, 4};"
                         "double kiln_kernel(int i) { return table[i & 3]; }")) {}
  void SetUp() override {
    ASSERT_TRUE(object_.found());
    ASSERT_TRUE(object_.Build().ok()) << object_.Build();
  }
  void ExpectRefused(const std::function<void(ElfObject*)>& change, const std::string& what) {
    ElfObject changed = object_;
    change(&changed);
    EXPECT_EQ(changed.Build().code(), absl::StatusCode::kInternal) << what;
  }
  ElfObject object_;
};

TEST_F(RelocationTest, OfEveryTypeButTwoIsRefused) {
  for (uint32_t type = 0; type < 256; ++type) {
    ElfObject changed = object_;
    changed.SetType(type);
    EXPECT_EQ(changed.Build().ok(), type == R_X86_64_PC32 || type == R_X86_64_PLT32) << type;
  }
}

TEST_F(RelocationTest, AgainstWhatIsNotInTheImageIsRefused) {
  for (const uint32_t section : {uint32_t{SHN_UNDEF}, uint32_t{SHN_ABS}, uint32_t{SHN_COMMON}, 0x7fffu}) {
    ExpectRefused([&](ElfObject* e) { e->symbol()->st_shndx = static_cast<Elf64_Half>(section); },
                  "a symbol of section " + std::to_string(section));
  }
  for (const uint32_t symbol : {0u, 1'000u, ~0u}) {
    ExpectRefused([&](ElfObject* e) { e->SetSymbol(symbol); }, "symbol " + std::to_string(symbol));
  }
  for (const uint64_t value : {uint64_t{1'000'000}, uint64_t{1} << 40, ~uint64_t{0}}) {
    ExpectRefused([&](ElfObject* e) { e->symbol()->st_value = value; }, "value " + std::to_string(value));
    ExpectRefused([&](ElfObject* e) { e->relocation()->r_offset = value; }, "place " + std::to_string(value));
  }
  ExpectRefused([](ElfObject* e) { e->relocation()->r_addend = int64_t{1} << 40; }, "addend");
}

// Whatever an object needs, the image that is loaded has no place for it: a client that is sent the object
// refuses it whole.
TEST_F(RelocationTest, AClientLoadsNoObject) {
  const std::string object = CompileC("double sin(double); double kiln_kernel(double x) { return sin(x); }");
  const absl::string_view images[] = {object};
  EXPECT_EQ(LoadImages(images).status().code(), absl::StatusCode::kDataLoss);
}

TEST(BackendErrorTest, TargetsAndKernelsThatCannotBe) {
  v1::Target target = X86Target(false);
  target.clear_features();
  EXPECT_EQ(NewCodegenBackend(target).status().code(), absl::StatusCode::kUnimplemented);
  target.set_triple("riscv64-linux-gnu");
  EXPECT_EQ(NewCodegenBackend(target).status().code(), absl::StatusCode::kUnimplemented);
  auto backend = NewCodegenBackend(X86Target(false));
  ASSERT_TRUE(backend.ok());
  v1::Kernel kernel = CopyKernel();
  kernel.mutable_stages(0)->mutable_ops(1)->set_args(0, 7);
  EXPECT_EQ((*backend)->Emit(kernel, {}, false).status().code(), absl::StatusCode::kInvalidArgument);
  // An index that doubles in size with every node: refused, not expanded.
  kernel = CopyKernel();
  uint32_t index = kernel.stages(0).ops(0).index();
  for (int k = 0; k < 60; ++k) {
    v1::ExprNode* sum = kernel.add_exprs();
    sum->set_op(v1::EXPR_ADD);
    sum->add_args(index);
    sum->add_args(index);
    index = kernel.exprs_size() - 1;
  }
  kernel.mutable_stages(0)->mutable_ops(0)->set_index(index);
  EXPECT_EQ((*backend)->Emit(kernel, {}, false).status().code(), absl::StatusCode::kUnimplemented);
  kernel = CopyKernel();
  kernel.mutable_stages(0)->mutable_ops(1)->set_op(9999);
  EXPECT_FALSE((*backend)->Emit(kernel, {}, false).ok());
}

}  // namespace
}  // namespace kiln
