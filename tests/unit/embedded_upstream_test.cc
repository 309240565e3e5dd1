#include "server/upstream/embedded_upstream.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

v1::HelloReply Farm(const std::string& tenant) {
  v1::HelloReply hello;
  hello.set_tenant(tenant);
  hello.add_trusted_keys()->set_public_key("for all that it serves");
  v1::TrustedKey* const own = hello.add_trusted_keys();
  own->set_public_key("for train and blessed");
  own->add_namespaces("blessed");
  own->add_namespaces("train");
  v1::TrustedKey* const other = hello.add_trusted_keys();
  other->set_public_key("for blessed");
  other->add_namespaces("blessed");
  return hello;
}

TEST(EmbeddedUpstream, TrustsTheKeysThatTheFarmTrustsForThatTenant) {
  v1::Config config;
  AdoptHello(Farm("train"), 1000, &config);
  ASSERT_EQ(config.listen().tenants_size(), 1);
  EXPECT_EQ(config.listen().tenants(0).name(), "train");
  EXPECT_EQ(config.listen().tenants(0).uids(0), 1000u);
  ASSERT_EQ(config.signing().trusted_size(), 2) << "not that of another namespace alone";
  for (const v1::TrustedKeyConfig& trusted : config.signing().trusted()) {
    ASSERT_EQ(trusted.namespaces_size(), 1);
    EXPECT_EQ(trusted.namespaces(0), "train");
  }
  EXPECT_EQ(config.signing().trusted(1).public_key(), absl::Base64Escape("for train and blessed"));
}

TEST(EmbeddedUpstream, WithoutTenantsThereTheClientsNamespaceIsServed) {
  v1::Config config;
  AdoptHello(Farm(""), 1000, &config);
  EXPECT_EQ(config.listen().tenants_size(), 0);
  ASSERT_EQ(config.signing().trusted_size(), 1);
  EXPECT_EQ(config.signing().trusted(0).namespaces(0), "default");
}

}  // namespace
}  // namespace kiln
