#include "startrail/run/hosts/net.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "startrail/base/error.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFrame = 1 << 20;  // what is longer is no frame of ours

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, int port, int type) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = type;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int code = getaddrinfo(host.c_str(), cat(port).c_str(), &hints, &found); code != 0)
    throw ClusterError(cat("the host '", host, "' is not known here: ", gai_strerror(code)));
  return {found, &freeaddrinfo};
}

std::string address_text(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  if (getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

void set_option(int descriptor, int level, int name, int value) {
  setsockopt(descriptor, level, name, &value, sizeof value);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

int Socket::release() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  return descriptor;
}

void Socket::close() {
  if (is_open()) ::close(release());
}

std::string address_towards(const std::string& host, int port) {
  const Addresses found = resolve(host, port, SOCK_DGRAM);
  const Socket socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  // Of a datagram socket this sends nothing, it only asks the routes.
  if (connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
    throw ClusterError(cat("there is no way from here to ", host, ": ", std::strerror(errno)));
  return address_text(reinterpret_cast<sockaddr*>(&own), length);
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

Socket listen_on(const std::string& host, int port) {
  const Addresses found = resolve(host, port, SOCK_STREAM);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(socket.get(), 4096) != 0) {
    const int code = errno;
    throw UserError(code == EADDRINUSE      ? cat("port ", port, " of ", host,
                                                  " is taken: give another one (MASTER_PORT, or --port of startrail launch)")
                    : code == EADDRNOTAVAIL ? cat(host, " is not an address of this host, where rank 0 runs: set ",
                                                  "MASTER_ADDR to one that is")
                                            : cat("cannot listen on ", host, ":", port, ": ", std::strerror(code)));
  }
  return socket;
}

int port_of(const Socket& listening) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  getsockname(listening.get(), reinterpret_cast<sockaddr*>(&own), &length);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(own).sin_port);
}

Socket connect_to(const std::string& address, int port, std::chrono::steady_clock::time_point until) {
  const Addresses found = resolve(address, port, SOCK_STREAM);
  std::string why = "no answer";
  while (std::chrono::steady_clock::now() < until) {
    Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int code = connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS) {
      pollfd waiting{socket.get(), POLLOUT, 0};
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      code = ETIMEDOUT;
      socklen_t length = sizeof code;
      if (poll(&waiting, 1, std::max<int>(0, static_cast<int>(left.count()))) == 1)
        getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length);
    }
    if (code == 0) return socket;
    why = std::strerror(code);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw ClusterError(cat("cannot connect to ", address, ":", port, ": ", why));
}

Socket accept_from(const Socket& listening) {
  fcntl(listening.get(), F_SETFL, fcntl(listening.get(), F_GETFL) | O_NONBLOCK);  // one may go again before it is taken
  return Socket(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Line::Line(Socket socket) : socket_(std::move(socket)) {
  if (!is_open()) return;
  fcntl(descriptor(), F_SETFL, fcntl(descriptor(), F_GETFL) | O_NONBLOCK);
  set_option(descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
}

void Line::send(char kind, const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  leaving_.append(reinterpret_cast<const char*>(&length), sizeof length).append(1, kind).append(text);
  flush();
}

void Line::flush() {
  while (is_open() && has_more()) {
    const ssize_t sent = ::send(descriptor(), leaving_.data(), leaving_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;  // later, or never: receive() tells which
    leaving_.erase(0, static_cast<size_t>(sent));
  }
}

bool Line::receive() {
  char piece[1 << 14];
  for (;;) {
    const ssize_t got = recv(descriptor(), piece, sizeof piece, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (got == 0) return false;
    arrived_.append(piece, static_cast<size_t>(got));
    uint32_t length = 0;
    if (arrived_.size() >= sizeof length) std::memcpy(&length, arrived_.data(), sizeof length);
    if (length > kMostFrame) return false;
  }
}

std::optional<Frame> Line::next() {
  uint32_t length = 0;
  constexpr size_t kHead = sizeof length + 1;
  if (arrived_.size() < kHead) return std::nullopt;
  std::memcpy(&length, arrived_.data(), sizeof length);
  if (arrived_.size() < kHead + length) return std::nullopt;
  Frame frame{arrived_[sizeof length], arrived_.substr(kHead, length)};
  arrived_.erase(0, kHead + length);
  return frame;
}

std::set<int> listening_sockets() {
  std::set<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const std::string name = entry.path().filename();
    int descriptor = -1, listens = 0;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    socklen_t length = sizeof listens;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens) found.insert(descriptor);
  }
  return found;
}

void seal(const std::set<int>& listening) {
  sock_filter drop_all[] = {{BPF_RET | BPF_K, 0, 0, 0}};
  const sock_fprog program{1, drop_all};
  for (int descriptor : listening) setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace startrail
