// The same contract for every kind of store, and what only the TCP store can get wrong.

#include "fullshard/rendezvous/store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "fullshard/base/error.h"

namespace fullshard::rendezvous {
namespace {

using base::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_error(ErrorCode code, const ::testing::Matcher<std::string>& message,
                  const std::function<void()>& call) {
  try {
    call();
    FAIL() << "did not fail";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(std::string(error.what()), message);
  }
}

/// A listening socket on a free port of this host.
struct Listening {
  Listening() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(fd, any, length), 0);
    EXPECT_EQ(listen(fd, 16), 0);
    EXPECT_EQ(getsockname(fd, any, &length), 0);
    port = ntohs(address.sin_port);
  }
  int fd;
  int port = 0;
};

TcpStoreOptions client_of(int port, base::Duration timeout = seconds(20)) {
  return {.host = "127.0.0.1", .port = port, .timeout = timeout};
}

Store serve() { return Store::over_tcp({.serve = true, .timeout = seconds(20)}); }

/// Two ranks' views of one store.
struct Views {
  Store first;
  Store second;
};

Views memory_views() {
  const Store store = Store::in_memory();
  return {store, store};
}

Views tcp_views() {
  const Store server = serve();
  return {server, Store::over_tcp(client_of(server.port()))};
}

Views file_views() {
  const auto path =
      std::filesystem::temp_directory_path() / ("fullshard-store-" + std::to_string(getpid()));
  std::filesystem::remove(path);
  return {Store::over_file(path, 2), Store::over_file(path, 2)};
}

struct Kind {
  const char* name;
  Views (*make)();
};

class AnyStore : public ::testing::TestWithParam<Kind> {
 protected:
  Views views_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Kinds, AnyStore,
                         ::testing::Values(Kind{"Memory", memory_views}, Kind{"Tcp", tcp_views},
                                           Kind{"File", file_views}),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(AnyStore, OneRankReadsWhatAnotherWrote) {
  const std::string bytes("a\0b\nc", 5);
  views_.first.set("key", bytes);
  EXPECT_EQ(views_.second.get("key", seconds(10)), bytes);
  views_.second.set("empty", "");
  EXPECT_EQ(views_.first.get("empty", seconds(10)), "");
}

TEST_P(AnyStore, GetWaitsForTheKey) {
  std::jthread writer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    views_.second.set("late", "value");
  });
  EXPECT_EQ(views_.first.get("late", seconds(20)), "value");
}

TEST_P(AnyStore, SaysWhetherAKeyIsSet) {
  EXPECT_FALSE(views_.first.has("address/0"));
  views_.second.set("address/0", "somewhere");
  EXPECT_TRUE(views_.first.has("address/0"));
}

TEST_P(AnyStore, AddCountsForAll) {
  EXPECT_EQ(views_.first.add("n", 2), 2);
  EXPECT_EQ(views_.second.add("n", 3), 5);
  EXPECT_EQ(views_.first.add("n", -5), 0);
}

TEST_P(AnyStore, AWaitEndsInTimeAndNamesTheKey) {
  expect_error(ErrorCode::kTimeout, AllOf(HasSubstr("the store"), HasSubstr("'job/absent'")),
               [&] { views_.first.with_prefix("job").get("absent", milliseconds(100)); });
  views_.first.set("after", "usable");
  EXPECT_EQ(views_.second.get("after", seconds(10)), "usable");
}

TEST_P(AnyStore, PrefixesKeepKeysApart) {
  views_.first.with_prefix("a").set("key", "1");
  views_.first.with_prefix("b").set("key", "2");
  EXPECT_EQ(views_.second.with_prefix("a").get("key", seconds(10)), "1");
  EXPECT_EQ(views_.second.with_prefix("b").get("key", seconds(10)), "2");
  EXPECT_EQ(views_.second.get("a/key", seconds(10)), "1");
}

TEST(TcpStore, TakesOverAListeningSocket) {
  const Listening listening;
  const Store server = Store::over_tcp(
      {.port = listening.port, .serve = true, .listen_fd = listening.fd, .timeout = seconds(20)});
  EXPECT_EQ(server.port(), listening.port);
  const Store client = Store::over_tcp(client_of(listening.port));
  server.set("key", "value");
  EXPECT_EQ(client.get("key", seconds(10)), "value");
}

TEST(TcpStore, LeavesTheListeningSocketToItsOwner) {
  const Listening listening;
  for (int i = 0; i < 2; ++i) {
    const Store server = Store::over_tcp(
        {.port = listening.port, .serve = true, .listen_fd = listening.fd, .timeout = seconds(20)});
    server.set("key", std::to_string(i));
    EXPECT_EQ(Store::over_tcp(client_of(listening.port)).get("key", seconds(10)),
              std::to_string(i));
  }
}

TEST(TcpStore, SaysThatAnInheritedSocketIsNone) {
  expect_error(ErrorCode::kSystem, HasSubstr("inherited socket 9999"), [] {
    Store::over_tcp({.port = 29999, .serve = true, .listen_fd = 9999, .timeout = seconds(5)});
  });
}

TEST(TcpStore, AClientMayComeBeforeTheServerOfAListeningSocket) {
  const Listening listening;
  std::jthread early([&] {
    const Store client = Store::over_tcp(client_of(listening.port));
    client.set("key", "early");
  });
  std::this_thread::sleep_for(milliseconds(50));
  const Store server = Store::over_tcp(
      {.port = listening.port, .serve = true, .listen_fd = listening.fd, .timeout = seconds(20)});
  EXPECT_EQ(server.get("key", seconds(10)), "early");
}

TEST(TcpStore, NamesTheBusyPort) {
  const Listening busy;
  const std::string place = "127.0.0.1:" + std::to_string(busy.port);
  expect_error(ErrorCode::kSystem, AllOf(HasSubstr(place), HasSubstr("MASTER_PORT")),
               [&] { Store::over_tcp({.port = busy.port, .serve = true, .timeout = seconds(5)}); });
  close(busy.fd);
}

TEST(TcpStore, SaysThatNobodyServes) {
  int port = 0;
  {
    const Listening gone;
    port = gone.port;
    close(gone.fd);
  }
  expect_error(ErrorCode::kTimeout, HasSubstr("127.0.0.1:" + std::to_string(port)),
               [&] { Store::over_tcp(client_of(port, seconds(1))); });
}

TEST(TcpStore, SaysThatTheServerIsGone) {
  auto server = std::make_unique<Store>(serve());
  const std::string place = "127.0.0.1:" + std::to_string(server->port());
  const Store client = Store::over_tcp(client_of(server->port()));
  client.set("key", "value");
  server.reset();
  expect_error(ErrorCode::kPeerLost, HasSubstr(place), [&] { client.get("other", seconds(10)); });
}

}  // namespace
}  // namespace fullshard::rendezvous
