// Sockets, as far as ranks need them: to find the address that peers can reach, to listen there and nowhere else, to
// send short frames, and to take nobody in once all are there.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace startrail {

// A socket that is closed at its end.
class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int release();
  void close();

 private:
  int descriptor_;
};

// The address of this host from which packets to `host` leave, as numbers. ClusterError when there is no way there, or
// no such name.
std::string address_towards(const std::string& host, int port);
bool is_loopback(const std::string& address);

// Listens on one address; port 0: a free one. UserError when the port is taken or the address is not of this host.
Socket listen_on(const std::string& host, int port);
int port_of(const Socket& listening);

// ClusterError when nobody answers until then.
Socket connect_to(const std::string& address, int port, std::chrono::steady_clock::time_point until);

// A connection that waits to come in; closed when there is none. Never waits itself.
Socket accept_from(const Socket& listening);

// Frames: a length of four bytes, a kind of one, and a text.
struct Frame {
  char kind = 0;
  std::string text;
};

// One end of a connection that carries frames and never blocks: what cannot be sent yet is sent later.
class Line {
 public:
  explicit Line(Socket socket);

  int descriptor() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  bool has_more() const { return !leaving_.empty(); }

  void send(char kind, const std::string& text);
  void flush();
  // Takes in what has come. False when the other side has closed, or sends what are no frames.
  bool receive();
  std::optional<Frame> next();
  void close() { socket_.close(); }

 private:
  Socket socket_;
  std::string leaving_, arrived_;
};

// The listening sockets of this process.
std::set<int> listening_sockets();
// From now on nobody can connect to these; connections that stand are untouched.
void seal(const std::set<int>& listening);

// As many open files as the system allows: each peer is one.
void raise_file_limit();

}  // namespace startrail
