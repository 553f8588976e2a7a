defmodule DnsCache.Cache do
  @moduledoc """
  What keeps answers: the local cache, the one in memcached, and the two together all look the same to the forwarder.

  A cache is a module and what the module needs to find its data. The time is an argument, so that a test moves it.
  """

  alias DnsCache.{Answer, Message}

  @type t :: {module(), handle :: term()}

  @doc "Looks up what was stored for a question, unless it is too old."
  @callback fetch(handle :: term(), Message.question(), now :: integer()) ::
              {:ok, Answer.t()} | :miss | {:error, reason :: term()}

  @doc "Stores the answer to a question for as long as its TTL says."
  @callback store(handle :: term(), Message.question(), Answer.t(), now :: integer()) ::
              :ok | {:error, reason :: term()}

  def fetch({module, handle}, question, now), do: module.fetch(handle, question, now)

  def store({module, handle}, question, answer, now), do: module.store(handle, question, answer, now)
end
