#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/launch_environment/environment.h"

// Slurm and MPI, as far as their variables tell.

namespace fullshard::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Task 3 of 7 on node02, as srun starts it.
const Environment kSlurm = {{"SLURM_JOB_ID", "4711"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_PROCID", "3"},
                            {"SLURM_NTASKS", "7"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_NODELIST", "node[01-03],other"},
                            {"SLURM_TASKS_PER_NODE", "2(x3),1"}};

// Rank 1 of 2, as mpirun starts it on one host.
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "2891120641"}};

const Environment kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

const Environment kTorch = {
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29501"}};

void expect_place(const LaunchEnvironment& env, int rank, int size, int local_rank,
                  int local_size) {
  EXPECT_TRUE(env.launched);
  EXPECT_EQ(env.rank, rank);
  EXPECT_EQ(env.world_size, size);
  EXPECT_EQ(env.local_rank, local_rank);
  EXPECT_EQ(env.local_world_size, local_size);
}

Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

TEST(Slurm, ATaskOfSrunIsARank) {
  const LaunchEnvironment env = read(kSlurm);
  expect_place(env, 3, 7, 1, 2);
  EXPECT_EQ(env.master_addr, "node01");
  EXPECT_EQ(source_of(env, "rank"), "SLURM_PROCID");
  EXPECT_EQ(source_of(env, "world size"), "SLURM_NTASKS");
  EXPECT_EQ(source_of(env, "local rank"), "SLURM_LOCALID");
  EXPECT_EQ(source_of(env, "local world size"), "SLURM_TASKS_PER_NODE");
  EXPECT_EQ(source_of(env, "master address"), "SLURM_NODELIST");
  EXPECT_EQ(source_of(env, "master port"), "SLURM_JOB_ID");
}

TEST(Slurm, FourVariablesAreEnough) {
  const LaunchEnvironment env = read({{"SLURM_PROCID", "9"},
                                      {"SLURM_NTASKS", "10"},
                                      {"SLURM_LOCALID", "1"},
                                      {"SLURM_NODELIST", "node[01-03,7],other"}});
  expect_place(env, 9, 10, 1, 2);
  EXPECT_EQ(env.master_addr, "node01");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_EQ(source_of(env, "local world size"), "an even spread");
}

TEST(Slurm, OneNodeMeetsAtItself) {
  Environment one = with(with(kSlurm, "SLURM_NODELIST", "node02"), "SLURM_TASKS_PER_NODE", "7");
  one["SLURM_NODEID"] = "0";
  expect_place(read(one), 3, 7, 1, 7);
  EXPECT_EQ(read(one).master_addr, "127.0.0.1");
}

TEST(Slurm, AStepsOwnVariablesComeBeforeThoseOfTheJob) {
  Environment step =
      with(with(kSlurm, "SLURM_STEP_NUM_TASKS", "4"), "SLURM_STEP_NODELIST", "x[7-8]");
  step["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)";
  const LaunchEnvironment env = read(step);
  expect_place(env, 3, 4, 1, 2);
  EXPECT_EQ(env.master_addr, "x7");
}

TEST(Slurm, RanksOfAJobAgreeOnAPortAndJobsSeldomShareOne) {
  const int port = read(kSlurm).master_port;
  EXPECT_EQ(read(with(kSlurm, "SLURM_PROCID", "0")).master_port, port);
  EXPECT_NE(read(with(kSlurm, "SLURM_JOB_ID", "4712")).master_port, port);
  EXPECT_NE(read(with(kSlurm, "SLURM_STEP_ID", "1")).master_port, port);
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 32768);  // Linux gives clients the ports from there up
}

TEST(Slurm, ABatchScriptOutsideSrunIsAProcessByItself) {
  EXPECT_FALSE(read(without(kSlurm, "SLURM_STEP_ID")).launched);
}

TEST(Slurm, AStepOfOneTaskMayStartRanksOfItsOwn) {
  EXPECT_FALSE(read(with(with(kSlurm, "SLURM_NTASKS", "1"), "SLURM_PROCID", "0")).launched);
}

TEST(Slurm, WhatTheUserExportsIsUsed) {
  const LaunchEnvironment env =
      read(merged(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}}));
  expect_place(env, 3, 7, 1, 2);
  EXPECT_EQ(env.master_addr, "10.0.0.1");
  EXPECT_EQ(env.master_port, 4000);
  EXPECT_EQ(source_of(env, "rank"), "SLURM_PROCID");
  EXPECT_EQ(source_of(env, "master address"), "MASTER_ADDR");
}

TEST(Slurm, ARankMayComeFromSrunAndTheSizeFromTheUser) {
  expect_place(read(merged(kSlurm, {{"WORLD_SIZE", "8"}})), 3, 8, 1, 2);
}

TEST(Slurm, WrongVariablesAreNamed) {
  expect_refused(with(kSlurm, "SLURM_PROCID", "x"), HasSubstr("SLURM_PROCID is 'x'"));
  expect_refused(with(kSlurm, "SLURM_PROCID", "7"),
                 AllOf(HasSubstr("SLURM_PROCID is 7"), HasSubstr("SLURM_NTASKS is 7")));
  expect_refused(with(kSlurm, "SLURM_NODELIST", "n["), HasSubstr("SLURM_NODELIST is 'n['"));
  expect_refused(with(kSlurm, "SLURM_TASKS_PER_NODE", "many"), HasSubstr("SLURM_TASKS_PER_NODE"));
  expect_refused(with(kSlurm, "SLURM_LOCALID", "2"), HasSubstr("SLURM_LOCALID=2"));
  expect_refused(without(kSlurm, "SLURM_NODELIST"), HasSubstr("MASTER_ADDR is not"));
}

TEST(Mpi, RanksOfMpirunOnOneHost) {
  for (const Environment& mpi : {kOpenMpi, kMpich}) {
    const LaunchEnvironment env = read(mpi);
    expect_place(env, 1, 2, 1, 2);
    EXPECT_EQ(env.master_addr, "127.0.0.1");
  }
  EXPECT_EQ(source_of(read(kOpenMpi), "rank"), "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(source_of(read(kMpich), "local rank"), "MPI_LOCALRANKID");
  EXPECT_EQ(source_of(read(kOpenMpi), "master port"), "PMIX_NAMESPACE");
  EXPECT_EQ(read(kMpich).master_port, 29500);
  EXPECT_NE(read(with(kOpenMpi, "PMIX_NAMESPACE", "2")).master_port, read(kOpenMpi).master_port);
}

TEST(Mpi, OnSeveralHostsTheAddressMustBeGiven) {
  Environment several = with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  several["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  expect_refused(several, HasSubstr("OMPI_COMM_WORLD_SIZE is set but MASTER_ADDR is not"));
  expect_place(read(merged(several, {{"MASTER_ADDR", "h"}})), 1, 2, 0, 1);
}

TEST(Mpi, AJobOfOneMayStartRanksOfItsOwn) {
  EXPECT_FALSE(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).launched);
}

TEST(Order, TorchsVariablesThenSlurmThenMpi) {
  EXPECT_EQ(source_of(read(merged(merged(kTorch, kSlurm), kOpenMpi)), "rank"), "RANK");
  const Environment same = {{"PMI_RANK", "3"}, {"PMI_SIZE", "7"}};  // srun --mpi=pmi2
  EXPECT_EQ(source_of(read(merged(kSlurm, same)), "rank"), "SLURM_PROCID");
}

TEST(Order, NumbersOnAHostAreThoseOfTheLauncherThatGaveTheRank) {
  const LaunchEnvironment env = read(merged(kTorch, kSlurm));
  expect_place(env, 0, 2, 0, 2);
  EXPECT_EQ(source_of(env, "local rank"), "nowhere");
}

// mpirun starts its daemons with srun, and the ranks inherit the daemon's variables.
TEST(Order, RanksOfMpirunInsideAStepOfSlurmAreMpis) {
  const LaunchEnvironment env = read(merged(kSlurm, kOpenMpi));
  expect_place(env, 1, 2, 1, 2);
  EXPECT_EQ(source_of(env, "rank"), "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(env.master_addr, "127.0.0.1");
}

}  // namespace
}  // namespace fullshard::rendezvous
