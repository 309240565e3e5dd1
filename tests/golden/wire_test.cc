// What travels is what it was: the messages and services of kiln.v1 against wire.txt. A field may be added,
// and then wire.txt is written anew with KILN_UPDATE=1; one that was there keeps its number, type and label,
// or is reserved.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "kiln/v1/admin.pb.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/bundle.pb.h"
#include "kiln/v1/call.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/config.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/kernel.pb.h"
#include "kiln/v1/object.pb.h"
#include "kiln/v1/record.pb.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {
namespace {

std::string Described() {
  std::string text;
  for (const google::protobuf::Descriptor* descriptor :
       {v1::StatusRequest::descriptor(), v1::ObjectRef::descriptor(), v1::Manifest::descriptor(),
        v1::HelloRequest::descriptor(), v1::Config::descriptor(), v1::Device::descriptor(),
        v1::LoopOp::descriptor(), v1::FailureRecord::descriptor(), v1::WorkerHello::descriptor(),
        v1::Gemm::descriptor(), v1::BundleHeader::descriptor(), v1::CallRequest::descriptor()}) {
    text += "// " + descriptor->file()->name() + "\n" + descriptor->file()->DebugString() + "\n";
  }
  return text;
}

TEST(Wire, IsWhatItWas) {
  const std::string path = KILN_WIRE_GOLDEN;
  if (std::getenv("KILN_UPDATE") != nullptr) std::ofstream(path) << Described();
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(Described(), golden.str()) << "see the head of wire_test.cc";
}

}  // namespace
}  // namespace kiln
