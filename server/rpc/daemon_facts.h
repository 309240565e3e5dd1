// What kilnd says of itself that only an administrator has use for: whom it takes the caller for, the keys
// that count, when its certificates end. Certificates are read from their files at each question, so that
// what was renewed is told.
//
// Threads: pure functions but for the file system.
#pragma once

#include "cache/signatures.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/auth/identities.h"

namespace kiln {

void AddCaller(const Identity& caller, const v1::ListenConfig& listen, v1::StatusReply* reply);
void AddKeys(const Signatures& signatures, v1::StatusReply* reply);
void AddClock(v1::StatusReply* reply);
// Of each PEM file the first certificate. One that can't be read has a message.
void AddCertificates(const v1::Config& config, v1::StatusReply* reply);

}  // namespace kiln
