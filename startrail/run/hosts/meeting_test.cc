#include "startrail/run/hosts/meeting.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "startrail/base/error.h"

namespace startrail {
namespace {

c10::intrusive_ptr<c10d::TCPStore> store_at(int port, bool serves) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serves;
  options.waitWorkers = false;
  if (serves) options.masterListenFd = listen_on("127.0.0.1", port).release();
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(Store, TakesTextsOfAnyLength) {
  const int port = port_of(listen_on("127.0.0.1", 0));
  const auto store = store_at(port, true);
  std::string text(20'000'003, 'x');
  for (size_t i = 0; i < text.size(); i += 1000) text[i] = static_cast<char>('a' + i / 1000 % 26);
  for (const std::string& one : {text, std::string(), std::string("\0=\n", 3)}) {
    put(*store, "key", one);
    EXPECT_EQ(wait_for_key(*store, "key", [] {}), one);
  }
}

TEST(Store, IsWaitedForUntilToldOtherwise) {
  const int port = port_of(listen_on("127.0.0.1", 0));
  const auto store = store_at(port, true);
  int asked = 0;
  EXPECT_THROW(wait_for_key(*store, "never",
                            [&] {
                              if (++asked == 2) throw ClusterError("enough");
                            }),
               ClusterError);
  EXPECT_EQ(asked, 2);
}

TEST(Store, ThatIsGoneIsNoticedAtOnce) {
  const int port = port_of(listen_on("127.0.0.1", 0));
  auto server = store_at(port, true);
  const auto client = store_at(port, false);
  server.reset();
  try {
    wait_for_key(*client, "key", [] {});
    FAIL() << "nobody answered";
  } catch (const ClusterError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("the place where the ranks meet is gone")) << error.what();
  }
}

}  // namespace
}  // namespace startrail
