# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.MoleculerTest do
  # What users of Moleculer's fault tolerance rely on, said in the terms of this library.
  use ExternalService.Case, async: false

  alias ExternalService.{AttemptTimeout, Deadline, DeadlineExceeded}

  # Moleculer's retry policy: retries 5, delay 100, maxDelay 1000, factor 2.
  @policy [base: 100, cap: 1_000, multiplier: 2, max_attempts: 6]

  describe "retries" do
    test "that are off leave the call as it is", %{service: s} do
      start_recording(s, retry: [max_attempts: 1])
      assert ExternalService.call(s, attempting({:error, :as_it_is})) == {:error, :as_it_is}
      assert {attempts(), slept()} == {1, []}
    end

    test "wait 100, 200, 400, 800 and then 1000 ms", %{service: s} do
      start_recording(s, retry: @policy)
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), slept()} == {6, [100, 200, 400, 800, 1_000]}
    end

    test "of three are four attempts, each told as a retry event", %{service: s} do
      start_recording(s, retry: Keyword.put(@policy, :max_attempts, 4))
      Recorder.attach(s, [[:call, :retry]])
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), slept(), length(Recorder.events())} == {4, [100, 200, 400], 4}
    end

    test "that are used up give the last error as it was, without another delay", %{service: s} do
      start_recording(s, retry: [max_attempts: 2, base: 1, retry_exceptions: [KeyError]])
      error = %KeyError{key: :mine}
      assert raised(fn -> ExternalService.call(s, fn -> raise error end) end) == error
      assert slept() == [1]
    end

    test "are not made for an error that the check refuses, nor told", %{service: s} do
      start_recording(s, retry: [retry_on: &match?({:error, code} when code >= 500, &1)] ++ @policy)
      Recorder.attach(s, [[:call, :retry]])
      assert ExternalService.call(s, attempting({:error, 404})) == {:error, 404}
      assert {attempts(), slept(), Recorder.events()} == {1, [], []}
      ExternalService.call(s, attempting({:error, 500}))
      assert attempts() == 6
    end

    test "can be set to none for one call", %{service: s} do
      start_recording(s, retry: @policy)
      ExternalService.call(s, [max_attempts: 1], attempting(:retry))
      assert attempts() == 1
    end
  end

  describe "a request timeout" do
    setup do
      before = Application.get_env(:external_service, :defaults)

      on_exit(fn ->
        if before,
          do: Application.put_env(:external_service, :defaults, before),
          else: Application.delete_env(:external_service, :defaults)
      end)
    end

    # How long an attempt of the service has, on the virtual clock.
    defp timeout_of(service, options, own) do
      clock = start_on_clock(service, [retry: [max_attempts: 1]] ++ options)
      late = fn -> VirtualClock.advance(clock, 1_000_000) end

      case ExternalService.call(service, own, late) do
        {:error, %AttemptTimeout{context: context}} -> context.timeout
        :ok -> :none
      end
    end

    test "is none by default, and the attempt runs where the call is made", %{service: s} do
      assert timeout_of(s, [], []) == :none
      assert ExternalService.call(s, &self/0) == self()
    end

    test "of the application holds for every service, one of the service goes before it, one of the call first", %{
      service: s
    } do
      Application.put_env(:external_service, :defaults, timeout: 5_000)
      assert timeout_of(s, [], []) == 5_000
      assert timeout_of(s, [timeout: 4_000], []) == 4_000
      assert timeout_of(s, [timeout: 4_000], timeout: 2_000) == 2_000
      assert timeout_of(s, [timeout: 4_000], timeout: :infinity) == :none
    end

    test "is a new one for each attempt, and counts for the breaker", %{service: s} do
      clock = start_on_clock(s, timeout: 100, retry: [base: 10, max_attempts: 3])
      late = attempting(fn -> VirtualClock.advance(clock, 150) end, clock)
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, late)
      assert attempt_times() == [0, 160, 330]
      assert ExternalService.counts(s).failures == 3
    end

    test "leaves other errors untouched", %{service: s} do
      ExternalService.start(s, timeout: 60_000)
      assert raised(fn -> ExternalService.call(s, fn -> raise KeyError, key: :mine end) end) == %KeyError{key: :mine}
      assert ExternalService.call(s, fn -> {:error, :mine} end) == {:error, :mine}
    end

    test "of a whole call is less for a call inside by what has passed, and nothing is done when nothing is left", %{
      service: s
    } do
      clock = start_on_clock(s)
      inside = fn -> ExternalService.call(s, [deadline: 5_000], &Deadline.remaining/0) end
      assert ExternalService.call(s, [deadline: 1_000], fn -> VirtualClock.advance(clock, 300) && inside.() end) == 700

      skipped =
        ExternalService.call(s, [deadline: 1_000], fn -> VirtualClock.advance(clock, 1_000) && {:inside, inside.()} end)

      assert {:inside, {:error, %DeadlineExceeded{context: %{skipped: true}}}} = skipped
    end

    test "and a fallback of the application are there for every service", %{service: s} do
      Application.put_env(:external_service, :defaults, fallback: {:value, :of_all})
      start_recording(s)
      assert ExternalService.call(s, fn -> :retry end) == :of_all
    end
  end
end
