#include "cache/bundle/bundle_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kLengthBytes = 4;

std::string Framed(const v1::BundleFrame& frame) {
  const std::string message = SerializeDeterministic(frame);
  std::string bytes;
  bytes.reserve(kLengthBytes + message.size());
  for (size_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(message.size() >> (8 * i) & 0xff);
  bytes += message;
  return bytes;
}

uint32_t LengthIn(absl::string_view bytes) {
  uint32_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  return length;
}

}  // namespace

SignedSubject BundleSubject(absl::string_view name_space, absl::string_view digest) {
  return {"bundle", name_space, digest, ""};
}

// ---- Writing ---------------------------------------------------------------------------------

BundleWriter::BundleWriter(const Signatures* signatures, v1::BundleHeader header)
    : signatures_(signatures), header_(std::move(header)) {}

std::string BundleWriter::Digested(std::string bytes) {
  digest_.Add(bytes);
  return bytes;
}

std::string BundleWriter::Begin() {
  v1::BundleFrame frame;
  *frame.mutable_header() = header_;
  return Digested(absl::StrCat(kBundleMagic, Framed(frame)));
}

std::string BundleWriter::Add(const Entry& entry) {
  v1::BundleFrame frame;
  v1::BundleEntry* const added = frame.mutable_entry();
  added->set_kind(static_cast<uint32_t>(entry.id.kind));
  added->set_key(entry.id.key);
  added->set_value(*entry.value);
  added->set_rebuild_ms(entry.rebuild_ms);
  ++entries_;
  return Digested(Framed(frame));
}

std::string BundleWriter::End() {
  v1::BundleFrame frame;
  v1::BundleTrailer* const trailer = frame.mutable_trailer();
  trailer->set_entries(entries_);
  trailer->set_digest(digest_.Finish());
  for (const std::string& name : header_.namespaces()) {
    v1::BundleSignature* const signature = trailer->add_signatures();
    signature->set_key_id(signatures_->key_id());
    signature->set_signature(signatures_->SignSubject(BundleSubject(name, trailer->digest())));
  }
  return Framed(frame);
}

// ---- Reading ---------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<BundleReader>> BundleReader::Open(FILE* file, Mode mode) {
  const bool sought = fseeko(file, 0, SEEK_END) == 0;
  const off_t bytes = ftello(file);
  if (!sought || bytes < 0 || fseeko(file, 0, SEEK_SET) != 0)
    return absl::UnavailableError("the bundle can't be read");
  std::unique_ptr<BundleReader> reader(new BundleReader(file, mode, static_cast<uint64_t>(bytes)));
  KILN_ASSIGN_OR_RETURN(const std::string magic, reader->Read(kBundleMagic.size()));
  if (magic != kBundleMagic) return absl::DataLossError("this is no bundle of kilnctl export");
  reader->digest_.Add(magic);
  KILN_ASSIGN_OR_RETURN(v1::BundleFrame frame, reader->ReadFrame());
  if (!frame.has_header()) return reader->Damaged("its first frame is no header");
  reader->header_ = std::move(*frame.mutable_header());
  return reader;
}

absl::Status BundleReader::Damaged(absl::string_view what) const {
  return absl::DataLossError(
      absl::StrCat("the bundle is damaged before byte ", at_, " of ", bytes_, ": ", what));
}

absl::StatusOr<std::string> BundleReader::Read(size_t bytes) {
  // Before there is room for it: a damaged length costs nothing.
  if (bytes > bytes_ - at_) return Damaged("it ends early");
  std::string read(bytes, '\0');
  const size_t got = fread(read.data(), 1, bytes, file_);
  at_ += got;
  if (got != bytes) return absl::UnavailableError("the bundle can't be read");
  return read;
}

absl::StatusOr<v1::BundleFrame> BundleReader::ReadFrame() {
  KILN_ASSIGN_OR_RETURN(const std::string length, Read(kLengthBytes));
  if (LengthIn(length) > kBundleFrameBytesMax) return Damaged("a frame is too long");
  KILN_ASSIGN_OR_RETURN(frame_, Read(LengthIn(length)));
  v1::BundleFrame frame;
  if (!ParseProto(frame_, "frame", &frame).ok() || frame.kind_case() == v1::BundleFrame::KIND_NOT_SET)
    return Damaged("a frame is none");
  if (!frame.has_trailer()) digest_.Add(length).Add(frame_);
  return frame;
}

absl::StatusOr<std::optional<v1::BundleEntry>> BundleReader::Next() {
  KILN_ASSIGN_OR_RETURN(v1::BundleFrame frame, ReadFrame());
  if (frame.has_entry()) {
    ++entries_;
    return std::move(*frame.mutable_entry());
  }
  if (!frame.has_trailer()) return Damaged("a second header");
  trailer_ = frame.trailer();
  if (at_ != bytes_) return Damaged("there is more after its end");
  if (mode_ == Mode::kDangerouslyBelieve) return std::nullopt;
  // No two spellings of one trailer.
  if (SerializeDeterministic(frame) != frame_) return Damaged("its trailer");
  if (trailer_.digest() != digest_.Finish()) return Damaged("its bytes are not those that were written");
  if (trailer_.entries() != entries_) return Damaged("it has another number of entries");
  return std::nullopt;
}

}  // namespace kiln
