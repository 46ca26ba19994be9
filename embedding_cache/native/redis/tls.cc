#include "redis/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <openssl/x509v3.h>

#include <new>

#include "core/status.h"
#include "redis/errors.h"

namespace rankhouse::redis {
namespace {

std::string LastFault() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

// Whether an error is the peer's alert that it does not take our certificate, or wants one.
bool IsRefusal(unsigned long code) {
  switch (ERR_GET_REASON(code)) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      return true;
    default:
      return false;
  }
}

bool IsAddress(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

}  // namespace

TlsContext::TlsContext(const Options& options)
    : context_(SSL_CTX_new(TLS_client_method())), server_name_(options.server_name) {
  if (context_ == nullptr) throw std::bad_alloc();
  SSL_CTX* context = context_.get();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  ERR_clear_error();
  if (options.ca_file.empty()) {
    Require(SSL_CTX_set_default_verify_paths(context) == 1, "redis: the system's certificates cannot be read (",
            LastFault(), "): name a ca_file");
  } else {
    Require(SSL_CTX_load_verify_locations(context, options.ca_file.c_str(), nullptr) == 1, "redis: ca_file ",
            options.ca_file, " cannot be used (", LastFault(), "): expected certificates in PEM");
  }
  if (options.certificate_file.empty()) return;
  Require(SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()) == 1,
          "redis: certificate_file ", options.certificate_file, " cannot be used (", LastFault(),
          "): expected certificates in PEM");
  Require(SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) == 1 &&
              SSL_CTX_check_private_key(context) == 1,
          "redis: key_file ", options.key_file, " cannot be used (", LastFault(), "): expected the key of ",
          options.certificate_file, " in PEM");
}

TlsStream::TlsStream(const TlsContext& context, const std::string& host) : ssl_(SSL_new(context.get())) {
  BIO *incoming = BIO_new(BIO_s_mem()), *outgoing = BIO_new(BIO_s_mem());
  if (ssl_ == nullptr || incoming == nullptr || outgoing == nullptr) {
    BIO_free(incoming);
    BIO_free(outgoing);
    throw std::bad_alloc();
  }
  SSL* ssl = ssl_.get();
  SSL_set_bio(ssl, incoming, outgoing);
  SSL_set_connect_state(ssl);
  const std::string& name = context.server_name().empty() ? host : context.server_name();
  if (IsAddress(name)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str());
  } else {
    SSL_set_tlsext_host_name(ssl, name.c_str());
    SSL_set1_host(ssl, name.c_str());
  }
  Advance();
}

void TlsStream::Fail(const char* what) {
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    throw NodeError(StrCat("its certificate is refused (", X509_verify_cert_error_string(verdict),
                           "): see ca_file and server_name"),
                    /*is_lasting=*/true);
  }
  if (IsRefusal(ERR_peek_error())) {
    throw NodeError(StrCat("refuses our certificate (", LastFault(), "): see certificate_file and key_file"),
                    /*is_lasting=*/true);
  }
  throw NodeError(StrCat(what, " (", LastFault(), ")"));
}

void TlsStream::Advance() {
  SSL* ssl = ssl_.get();
  ERR_clear_error();
  if (!SSL_is_init_finished(ssl)) {
    const int result = SSL_do_handshake(ssl);
    if (result != 1) {
      const int fault = SSL_get_error(ssl, result);
      if (fault == SSL_ERROR_WANT_READ || fault == SSL_ERROR_WANT_WRITE) return;
      Fail("the TLS handshake failed");
    }
  }
  if (waiting_.empty()) return;
  // Memory takes all that is written.
  if (SSL_write(ssl, waiting_.data(), static_cast<int>(waiting_.size())) <= 0) Fail("TLS failed");
  waiting_.clear();
}

void TlsStream::Received(const char* bytes, size_t size) {
  if (BIO_write(SSL_get_rbio(ssl_.get()), bytes, static_cast<int>(size)) != static_cast<int>(size)) {
    throw std::bad_alloc();
  }
  Advance();
}

size_t TlsStream::Read(char* bytes, size_t size) {
  SSL* ssl = ssl_.get();
  if (!SSL_is_init_finished(ssl)) return 0;
  ERR_clear_error();
  const int count = SSL_read(ssl, bytes, static_cast<int>(size));
  if (count > 0) return static_cast<size_t>(count);
  const int fault = SSL_get_error(ssl, count);
  if (fault == SSL_ERROR_WANT_READ || fault == SSL_ERROR_WANT_WRITE) return 0;
  if (fault == SSL_ERROR_ZERO_RETURN) throw NodeError("closed the connection");
  Fail("TLS failed");
}

void TlsStream::Write(std::string_view bytes) {
  waiting_ += bytes;
  Advance();
}

void TlsStream::TakeOutgoing(std::string* out) {
  BIO* outgoing = SSL_get_wbio(ssl_.get());
  const size_t pending = BIO_ctrl_pending(outgoing);
  if (pending == 0) return;
  const size_t before = out->size();
  out->resize(before + pending);
  BIO_read(outgoing, out->data() + before, static_cast<int>(pending));
}

}  // namespace rankhouse::redis
