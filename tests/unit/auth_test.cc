// Who may call, and what: identities by the configuration, the table of roles and RPCs.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "gtest/gtest.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.pb.h"
#include "server/auth/identities.h"
#include "server/auth/role_table.h"

namespace kiln {
namespace {

// ---- The table -------------------------------------------------------------------------------

TEST(RoleTable, HasARowForEachRpcOfEveryService) {
  std::vector<std::string> rows;
  for (const RpcRule& rule : RpcRules()) {
    EXPECT_EQ(RuleOf(rule.rpc).name, rule.name);
    EXPECT_FALSE(rule.allowed.empty()) << rule.name;
    rows.emplace_back(rule.name);
  }
  std::vector<std::string> rpcs;
  for (const auto* file : {v1::CompileRequest::descriptor()->file(), v1::StatusRequest::descriptor()->file(),
                           grpc::reflection::v1::ServerReflectionRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* service = file->service(s);
      for (int i = 0; i < service->method_count(); ++i) {
        rpcs.push_back(absl::StrCat(service->name(), ".", service->method(i)->name()));
      }
    }
  }
  std::sort(rows.begin(), rows.end());
  std::sort(rpcs.begin(), rpcs.end());
  EXPECT_EQ(rows, rpcs);
}

TEST(RoleTable, IsTheOneInTheDocuments) {
  std::ifstream file(KILN_OPERATING_DOCUMENT);
  std::stringstream text;
  text << file.rdbuf();
  std::cout << RoleTable();
  EXPECT_TRUE(absl::StrContains(text.str(), RoleTable())) << "docs/operating.md shows another table";
}

// ---- Identities ------------------------------------------------------------------------------

v1::ListenConfig Listen(const std::string& text) {
  v1::ListenConfig listen;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &listen));
  return listen;
}

constexpr uid_t kOwn = 7;
constexpr char kTwoTenants[] = R"(
  tenants { name: "red" uids: 7 uids: 8 identities: "kiln:red" identities: "kiln:crimson" }
  tenants { name: "blue" uids: 9 identities: "kiln:blue" roles: ROLE_READ roles: ROLE_FORWARD speaks_for: "red" }
)";

TEST(Identities, WithoutTenantsEverybodyIsOneWithAllRoles) {
  const Identities identities(Listen(""), kOwn);
  EXPECT_FALSE(identities.has_tenants());
  for (const uid_t uid : {uid_t{7}, uid_t{8}, static_cast<uid_t>(-1)}) {
    const Identity* const who = identities.OfUser(uid);
    ASSERT_NE(who, nullptr);
    EXPECT_EQ(who->tenant, "");
    for (const RpcRule& rule : RpcRules()) EXPECT_TRUE(who->roles.Meets(rule.allowed)) << rule.name;
  }
  EXPECT_EQ(identities.OfCertificate({"kiln:red"}).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST(Identities, AUserIsItsTenant) {
  const Identities identities(Listen(kTwoTenants), kOwn);
  ASSERT_NE(identities.OfUser(8), nullptr);
  EXPECT_EQ(identities.OfUser(8)->tenant, "red");
  EXPECT_TRUE(identities.OfUser(8)->roles.Has(v1::ROLE_COMPILE)) << "the default";
  EXPECT_FALSE(identities.OfUser(8)->roles.Has(v1::ROLE_ADMIN));
  EXPECT_TRUE(identities.OfUser(7)->roles.Has(v1::ROLE_ADMIN)) << "kilnd's own user";
  EXPECT_TRUE(identities.OfUser(7)->roles.Has(v1::ROLE_COMPILE));
  EXPECT_EQ(identities.OfUser(7)->tenant, "red");
  EXPECT_FALSE(identities.OfUser(9)->roles.Has(v1::ROLE_COMPILE)) << "it has other roles";
  EXPECT_EQ(identities.OfUser(10), nullptr);
}

TEST(Identities, TheOwnUserIsServedThoughItIsNoTenant) {
  const Identities identities(Listen("tenants { name: \"red\" uids: 8 }"), kOwn);
  const Identity* const own = identities.OfUser(kOwn);
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(own->tenant, "");
  EXPECT_TRUE(own->roles.Meets(RuleOf(Rpc::kEvict).allowed));
  EXPECT_FALSE(own->roles.Meets(RuleOf(Rpc::kLookup).allowed)) << "it has no namespace";
}

TEST(Identities, ACertificateIsWhoseOneUriItHas) {
  const Identities identities(Listen(kTwoTenants), kOwn);
  for (const auto& [uris, tenant] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"kiln:red"}, "red"},
           {{"kiln:crimson"}, "red"},
           {{"https://elsewhere", "kiln:blue"}, "blue"},
       }) {
    const auto who = identities.OfCertificate(uris);
    ASSERT_TRUE(who.ok()) << who.status();
    EXPECT_EQ((*who)->tenant, tenant);
  }
  // kilnd's own user is a user: a certificate of its tenant is no administrator's.
  EXPECT_FALSE((*identities.OfCertificate({"kiln:red"}))->roles.Has(v1::ROLE_ADMIN));
  for (const std::vector<std::string>& uris :
       std::vector<std::vector<std::string>>{{},
                                             {""},
                                             {"kiln:RED"},
                                             {"kiln:red/"},
                                             {"kiln:green"},
                                             {"kiln:red", "kiln:blue"},
                                             {"kiln:red", "kiln:crimson"}}) {
    EXPECT_EQ(identities.OfCertificate(uris).status().code(), absl::StatusCode::kUnauthenticated)
        << (uris.empty() ? "" : uris[0]);
  }
}

TEST(Identities, WhoForwardsSpeaksForThoseWhomItMay) {
  const Identities identities(Listen(kTwoTenants), kOwn);
  const Identity& blue = **identities.OfCertificate({"kiln:blue"});
  const auto red = identities.SpokenFor(blue, "red");
  ASSERT_TRUE(red.ok()) << red.status();
  EXPECT_EQ((*red)->tenant, "red");
  EXPECT_TRUE((*red)->roles.Has(v1::ROLE_COMPILE));
  for (const char* name : {"blue", "green", ""}) {
    EXPECT_EQ(identities.SpokenFor(blue, name).status().code(), absl::StatusCode::kPermissionDenied) << name;
  }
  const absl::Status lacks = identities.SpokenFor(*identities.OfUser(8), "red").status();
  EXPECT_EQ(lacks.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(lacks.message(), "lacks role forward")) << lacks;
}

TEST(Identities, WhoIsSpokenForIsNoAdministrator) {
  const Identities identities(Listen(R"(
    tenants { name: "red" identities: "kiln:red" roles: ROLE_ADMIN roles: ROLE_READ }
    tenants { name: "blue" identities: "kiln:blue" roles: ROLE_FORWARD speaks_for: "red" }
  )"),
                              kOwn);
  const auto red = identities.SpokenFor(**identities.OfCertificate({"kiln:blue"}), "red");
  ASSERT_TRUE(red.ok()) << red.status();
  EXPECT_FALSE((*red)->roles.Has(v1::ROLE_ADMIN));
  EXPECT_TRUE((*red)->roles.Has(v1::ROLE_READ));
}

}  // namespace
}  // namespace kiln
