defmodule DnsCache.RemoteCache do
  @moduledoc """
  A cache in memcached, which many forwarders may share and which outlives them. Its handle is a `DnsCache.Memcached`.

  What is found there was written by somebody: if it is no answer to the question it is not there.
  """

  @behaviour DnsCache.Cache

  alias DnsCache.{Answer, Memcached, Message}

  @impl true
  def fetch(client, question, now) do
    with {:ok, value} <- Memcached.get(client, key(question)),
         {:ok, answer} <- Answer.from_binary(value, question),
         true <- Answer.fresh?(answer, now) do
      {:ok, answer}
    else
      {:error, reason} -> {:error, reason}
      _absent_or_old -> :miss
    end
  end

  @impl true
  def store(client, question, answer, now) do
    case Answer.time_left(answer, now) do
      seconds when seconds > 0 -> Memcached.set(client, key(question), Answer.to_binary(answer), seconds)
      _too_old -> :ok
    end
  end

  @doc "Returns the key of a question. A name may be longer than a key, and may hold what a key may not: so it is a hash."
  def key(question) do
    {name, type, class} = Message.key(question)
    "dns:" <> Base.url_encode64(:crypto.hash(:sha256, "#{type} #{class} " <> name), padding: false)
  end
end
